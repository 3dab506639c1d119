INSERT INTO seekpoint.consumer_group (name, version) VALUES (%(group)s::VARCHAR, %(version)s::INTEGER) ON CONFLICT DO NOTHING;
