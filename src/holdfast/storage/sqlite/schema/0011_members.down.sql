DROP TABLE bus_invite;
DROP TABLE bus_mesh;
