-- The SM counts that a GPU's backend can enforce leave the GPU's own row. Each grant and each release counts on that
-- row (gpu.used_*), and a row with hundreds of counts in it was rewritten, overflow pages and all, each time.
--
-- What may not change once released: this file.

PRAGMA user_version = 2;

CREATE TABLE gpu_enforceable (
    gpu_id INTEGER PRIMARY KEY REFERENCES gpu ON DELETE CASCADE,
    counts TEXT NOT NULL CHECK (json_valid(counts))   -- ascending
) STRICT;
INSERT INTO gpu_enforceable SELECT gpu_id, enforceable FROM gpu;
ALTER TABLE gpu DROP COLUMN enforceable;
