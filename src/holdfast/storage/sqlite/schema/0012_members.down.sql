DROP TABLE bus_address;
DROP TABLE bus_invite;
DROP TABLE bus_mesh;
