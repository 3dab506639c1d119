WITH ordered AS MATERIALIZED
(SELECT %(group)s::VARCHAR AS consumer_group, suspected.topic AS topic, suspected.partition AS partition, suspected.token AS token, suspected.end_offset AS end_offset, suspected.part_end AS part_end
FROM unnest((SELECT %(suspected_topic)s::TEXT[] AS anon_1), (SELECT %(suspected_partition)s::INTEGER[] AS anon_2), (SELECT %(suspected_token)s::UUID[] AS anon_3), (SELECT %(suspected_end_offset)s::BIGINT[] AS anon_4), (SELECT %(suspected_part_end)s::BIGINT[] AS anon_5)) AS suspected(topic, partition, token, end_offset, part_end) JOIN LATERAL (SELECT 1 AS one
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = suspected.topic AND seekpoint.partition_offset.partition = suspected.partition AND seekpoint.partition_offset.token = suspected.token FOR NO KEY UPDATE) AS own ON true),
watched AS
(UPDATE seekpoint.partition_offset SET unreleased_claims=CASE WHEN (ordered.end_offset IS NULL) THEN 0 ELSE seekpoint.partition_offset.unreleased_claims END, suspect_end=CASE WHEN (ordered.end_offset IS NOT NULL AND seekpoint.partition_offset.suspect_end > seekpoint.partition_offset.next_offset) THEN seekpoint.partition_offset.suspect_end ELSE ordered.end_offset END, suspect_part_end=ordered.part_end, suspect_running=(ordered.part_end IS NOT NULL) FROM ordered WHERE seekpoint.partition_offset.consumer_group = ordered.consumer_group AND seekpoint.partition_offset.topic = ordered.topic AND seekpoint.partition_offset.partition = ordered.partition AND seekpoint.partition_offset.token = ordered.token RETURNING 1 AS one),
rows AS
(SELECT count(*) AS n
FROM watched)
 SELECT CASE WHEN (rows.n = %(expected)s::INTEGER) THEN rows.n ELSE CAST('seekpoint: the claim is not the expected one; ranges noted: ' || CAST(rows.n AS TEXT) AS INTEGER) END AS suspected
FROM rows;
