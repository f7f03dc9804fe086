DROP FUNCTION accept_alike;
