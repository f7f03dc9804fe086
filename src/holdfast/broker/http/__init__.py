"""What a broker answers over HTTP. The frame around it is that of a node's API."""
