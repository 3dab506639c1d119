-- The manifest of archives: which file has which records of which partition.

-- name: within
SELECT topic, partition, topic_id, from_offset, to_offset, records, bytes, file, sha256, format, consumer_group, run,
       actor, written_at
FROM seekpoint.export_manifest
WHERE archive = %(archive)s
  AND topic = %(topic)s
  AND topic_id = %(topic_id)s
  AND partition = %(partition)s
  AND from_offset < %(end)s
  AND to_offset > %(start)s
ORDER BY from_offset;

-- name: chain
SELECT topic, partition, topic_id, from_offset, to_offset, records, bytes, file, sha256, format, consumer_group, run,
       actor, written_at
FROM seekpoint.export_manifest
WHERE archive = %(archive)s AND topic = %(topic)s AND topic_id = %(topic_id)s AND partition = %(partition)s
ORDER BY from_offset;

-- name: all
SELECT topic, partition, topic_id, from_offset, to_offset, records, bytes, file, sha256, format, consumer_group, run,
       actor, written_at
FROM seekpoint.export_manifest
WHERE archive = %(archive)s
ORDER BY topic, topic_id, partition, from_offset;

-- name: known
-- In any archive: a root may have several names (a link, a bucket's options), but file names are unique.
SELECT file FROM seekpoint.export_manifest WHERE file <> '';

-- name: roots
SELECT DISTINCT archive FROM seekpoint.export_manifest ORDER BY archive;

-- name: is_file
SELECT EXISTS (SELECT FROM seekpoint.export_manifest WHERE file = %(file)s);

-- name: insert
INSERT INTO seekpoint.export_manifest
    (archive, topic, partition, topic_id, from_offset, to_offset, records, bytes, file, sha256, format, consumer_group,
     run, actor)
VALUES (%(archive)s, %(topic)s, %(partition)s, %(topic_id)s, %(from_offset)s, %(to_offset)s, %(records)s, %(bytes)s,
        %(file)s, %(sha256)s, %(format)s, %(consumer_group)s, %(run)s, %(actor)s);

-- name: note
-- A sweep considers only files whose names have the id of a run that this database knows.
INSERT INTO seekpoint.export_run (id, archive, consumer_group, actor)
VALUES (%(id)s, %(archive)s, %(consumer_group)s, %(actor)s);

-- name: runs
SELECT id FROM seekpoint.export_run;
