DROP TABLE audit_chain;
DROP TABLE audit;
