"""The port of a broker's store (BrokerStore)."""
