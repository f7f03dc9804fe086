"""Rules of links: whom to dial and when, which connection is the link, credit and signs of life."""
