SELECT seekpoint.reprocess_dead_letter.key, min(seekpoint.reprocess_dead_letter.record_offset) AS first
FROM seekpoint.reprocess_dead_letter
WHERE seekpoint.reprocess_dead_letter.run = %(its_run)s::UUID AND seekpoint.reprocess_dead_letter.key IS NOT NULL GROUP BY seekpoint.reprocess_dead_letter.key;
