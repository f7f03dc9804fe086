DROP TABLE commit_line;
DROP TABLE commit_order;
