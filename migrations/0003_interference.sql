-- What a job's stages cost each other is kept beside the factors that were measured with it: one is wrong without the
-- other.
--
-- What may not change once released: this file.

PRAGMA user_version = 3;

ALTER TABLE job ADD COLUMN kappa TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(kappa));   -- by stage, by stage
