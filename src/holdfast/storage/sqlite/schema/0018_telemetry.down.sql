DROP TABLE telemetry;
DROP TABLE telemetry_count;
