WITH ordered AS
(SELECT mine.topic AS topic, mine.partition AS partition, mine.claim AS claim
FROM unnest((SELECT %(released_topic)s::TEXT[] AS anon_1), (SELECT %(released_partition)s::INTEGER[] AS anon_2), (SELECT %(released_claim)s::UUID[] AS anon_3)) AS released(topic, partition, claim) JOIN LATERAL (SELECT seekpoint.partition_offset.topic AS topic, seekpoint.partition_offset.partition AS partition, seekpoint.partition_offset.claim AS claim
FROM seekpoint.partition_offset
WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = released.topic AND seekpoint.partition_offset.partition = released.partition AND seekpoint.partition_offset.claim = released.claim FOR NO KEY UPDATE) AS mine ON %(param_1)s)
 UPDATE seekpoint.partition_offset SET owner=NULL, unreleased_claims=%(unreleased_claims)s::INTEGER, attempt_offset=NULL, attempts=%(attempts)s::INTEGER FROM ordered WHERE seekpoint.partition_offset.consumer_group = %(group)s::VARCHAR AND seekpoint.partition_offset.topic = ordered.topic AND seekpoint.partition_offset.partition = ordered.partition AND seekpoint.partition_offset.claim = ordered.claim;
