DROP TABLE vector_mesh;
DROP TABLE vector_model;
DROP TABLE vector;
