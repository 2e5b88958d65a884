BEGIN TRANSACTION;
CREATE TABLE hopback_api_keys (
	id TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "hopback_api_keys" VALUES('4ce10a6bedf3','{"id":"4ce10a6bedf3","name":"vera","hash":"sha256:4ce10a6bedf34961a626511b960e3dc98684df3f71ac3d2885e08d367c5e184d","grant":{"role":"viewer","queues":["orders*"]},"expires":null,"made_by":"ann","made_at":1794887869.966837}');
CREATE TABLE hopback_audit (
	number INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	"by" TEXT NOT NULL, 
	action TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	job TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	result TEXT NOT NULL, 
	details TEXT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "hopback_audit" VALUES(1,1.79488786998160910601e+09,'','messages.export','orders.dlq','','','ok','{"session": "", "filter": "", "lines": 5}');
INSERT INTO "hopback_audit" VALUES(2,1.79488787002281856538e+09,'Ann','job.start','orders.dlq','j-2e70195629ad','the article is there again','ok','{"kind": "re-drive", "selected": 30, "target": "design"}');
CREATE TABLE hopback_inbox (
	consumer TEXT NOT NULL, 
	message_id TEXT NOT NULL, 
	processed_at DOUBLE NOT NULL, 
	PRIMARY KEY (consumer, message_id)
);
INSERT INTO "hopback_inbox" VALUES('billing','m-1',1.79488786995610785481e+09);
CREATE TABLE hopback_job_failures (
	number INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (number)
);
CREATE TABLE hopback_jobs (
	number INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	place TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	state TEXT NOT NULL, 
	"key" TEXT, 
	document TEXT NOT NULL, 
	wish TEXT NOT NULL, 
	leased_by TEXT, 
	leased_until DOUBLE DEFAULT '0' NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (id)
);
INSERT INTO "hopback_jobs" VALUES(1,'j-2e70195629ad','embedded RabbitMQ 3.10 /','orders.dlq','interrupted','redrive-7','{"id":"j-2e70195629ad","spec":{"kind":"re-drive","queue":"orders.dlq","broker":"embedded RabbitMQ 3.10 /","selection":{"count":30,"filter":"","digests":null},"why":"the article is there again","by":{"id":"u-1","name":"Ann"},"target":{"kind":"design","exchange":"","routing_key":"","reset":null},"pace":{"rate":100.0,"in_flight":1,"ramp":[],"watch_s":null,"tries":5,"pause_s":0.25},"max_redrives":3,"stamped":false,"operation":"","export_to":"","key":"redrive-7","forced":false},"state":"interrupted","counts":{"selected":30,"done":21,"skipped":0,"failed":0,"returned":9,"arrived_meanwhile":0,"came_back":0},"reason":"the process that ran it ended","rate":100.0,"run":1,"created":1794887870.0083358,"updated":1794887870.2071521,"checkpoint":{"kept":0,"window":["4976379b4678a6a6","625b645831e67456","7b405519aa433839","3401c3dededbd1b6","2d1af29f457e9dd9","0637a15c32e04f29","1f2c901da9450346","98b48cd2dbd19c37","81afbd934074d058","51af6ced004b334c","48b45dac9bee7f23","63990e6fec70add3","7a823f2e77d5e1bc","35c3a9e9034d0833","2cd898a898e8445c"],"rest":0},"changes":4}','{"paused":false,"cancelled":false,"rate":100.0}',NULL,0.0);
CREATE TABLE hopback_outbox (
	id INTEGER NOT NULL, 
	slot INTEGER NOT NULL, 
	"key" TEXT, 
	message_id TEXT NOT NULL, 
	exchange TEXT NOT NULL, 
	routing_key TEXT NOT NULL, 
	body BLOB NOT NULL, 
	properties TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	failures INTEGER DEFAULT '0' NOT NULL, 
	error TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "hopback_outbox" VALUES(1,8,'customer-7','outbox-0','','orders',X'7B226964223A313030307D','{"content_type":"application/json","headers":{"$table":{}},"delivery_mode":2,"correlation_id":"outbox-0","message_id":"outbox-0"}',1.79488786995759058004e+09,0,NULL);
INSERT INTO "hopback_outbox" VALUES(2,8,'customer-7','outbox-1','','orders',X'7B226964223A313030317D','{"content_type":"application/json","headers":{"$table":{}},"delivery_mode":2,"correlation_id":"outbox-1","message_id":"outbox-1"}',1.79488786995867490763e+09,0,NULL);
INSERT INTO "hopback_outbox" VALUES(3,8,'customer-7','outbox-2','','orders',X'7B226964223A313030327D','{"content_type":"application/json","headers":{"$table":{}},"delivery_mode":2,"correlation_id":"outbox-2","message_id":"outbox-2"}',1.79488786996287035943e+09,0,NULL);
CREATE TABLE hopback_outbox_slots (
	slot INTEGER NOT NULL, 
	leased_by TEXT, 
	leased_until DOUBLE DEFAULT '0' NOT NULL, 
	PRIMARY KEY (slot)
);
INSERT INTO "hopback_outbox_slots" VALUES(0,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(1,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(2,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(3,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(4,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(5,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(6,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(7,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(8,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(9,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(10,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(11,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(12,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(13,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(14,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(15,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(16,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(17,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(18,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(19,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(20,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(21,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(22,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(23,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(24,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(25,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(26,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(27,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(28,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(29,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(30,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(31,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(32,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(33,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(34,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(35,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(36,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(37,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(38,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(39,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(40,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(41,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(42,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(43,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(44,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(45,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(46,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(47,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(48,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(49,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(50,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(51,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(52,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(53,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(54,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(55,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(56,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(57,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(58,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(59,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(60,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(61,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(62,NULL,0.0);
INSERT INTO "hopback_outbox_slots" VALUES(63,NULL,0.0);
CREATE TABLE hopback_versions (
	version INTEGER NOT NULL, 
	applied_at DOUBLE NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "hopback_versions" VALUES(1,1.79488786989176535603e+09);
INSERT INTO "hopback_versions" VALUES(2,1.79488786989176535603e+09);
INSERT INTO "hopback_versions" VALUES(3,1.79488786989176535603e+09);
CREATE INDEX ix_hopback_inbox_processed_at ON hopback_inbox (processed_at);
CREATE INDEX hopback_outbox_order ON hopback_outbox (slot, id);
CREATE UNIQUE INDEX hopback_jobs_active ON hopback_jobs (place, queue) WHERE state IN ('running', 'paused');
CREATE UNIQUE INDEX hopback_jobs_key ON hopback_jobs (place, "key");
CREATE INDEX ix_hopback_job_failures_job ON hopback_job_failures (job);
CREATE TRIGGER hopback_audit_no_update BEFORE UPDATE ON hopback_audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER hopback_audit_no_delete BEFORE DELETE ON hopback_audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
COMMIT;
