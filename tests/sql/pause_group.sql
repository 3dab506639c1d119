UPDATE seekpoint.consumer_group SET paused=%(to_paused)s, paused_reason=%(reason)s::VARCHAR, paused_by=%(actor)s::VARCHAR WHERE seekpoint.consumer_group.name = %(group)s::VARCHAR;
