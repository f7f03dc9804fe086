"""One write and one arrival: operations, change, intake, fold, and the engine that runs them."""
