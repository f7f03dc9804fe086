DROP TABLE bus_capability;
