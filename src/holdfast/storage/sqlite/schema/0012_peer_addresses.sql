-- Where a zone was reached, and when it was last linked: a record of mDNS may be gone or stolen, an address may not.

ALTER TABLE zone ADD COLUMN addresses TEXT NOT NULL DEFAULT '[]';  -- JSON list of host:port, the latest first
ALTER TABLE zone ADD COLUMN seen_at INTEGER;
