SELECT seekpoint.reprocess_dead_letter.record_offset, seekpoint.reprocess_dead_letter.key, seekpoint.reprocess_dead_letter.state, seekpoint.reprocess_dead_letter.cause, seekpoint.reprocess_dead_letter.error, seekpoint.reprocess_dead_letter.sqlstate
FROM seekpoint.reprocess_dead_letter
WHERE seekpoint.reprocess_dead_letter.run = %(its_run)s::UUID ORDER BY seekpoint.reprocess_dead_letter.record_offset
 LIMIT %(most)s::INTEGER;
