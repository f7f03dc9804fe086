DROP TABLE blocked_peer;
