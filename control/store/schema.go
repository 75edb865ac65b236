package store

// applicationID marks the file as weft's (PRAGMA application_id): "weft" in ASCII.
const applicationID = 0x77656674

// format is the format of files that are made now (PRAGMA user_version). Those of format i are brought to the next one by
// migrations[i-1]; entries are only ever added, and never changed.
var format = len(migrations) + 1

var migrations = []string{toFormat2, toFormat3}

// toFormat2 lets nodes in that have a gateway and no machine key. SQLite takes a NOT NULL away from no column, so the
// table is made anew.
const toFormat2 = `
CREATE TABLE nodes2 (
	id        INTEGER PRIMARY KEY,
	machine   BLOB UNIQUE,
	key       BLOB NOT NULL UNIQUE,
	name      TEXT NOT NULL UNIQUE,
	ipv4      TEXT NOT NULL UNIQUE,
	ipv6      TEXT NOT NULL UNIQUE,
	user      TEXT REFERENCES users (name),
	tags      TEXT NOT NULL,
	ephemeral INTEGER NOT NULL,
	join_key  INTEGER NOT NULL,
	created   INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	seen      INTEGER NOT NULL,
	gateway   INTEGER NOT NULL CHECK ((gateway <> 0) = (machine IS NULL))
) STRICT;
INSERT INTO nodes2 SELECT id, machine, key, name, ipv4, ipv6, user, tags, ephemeral, join_key, created, expires, seen, 0 FROM nodes;
DROP TABLE nodes;
ALTER TABLE nodes2 RENAME TO nodes;
CREATE INDEX nodes_of_user ON nodes (user);
`

// toFormat3 gives people identities and ends, nodes approval and routes, and the network documents. Who was in stays in.
// Tags are written as policies write them.
const toFormat3 = `
ALTER TABLE users ADD COLUMN expires  INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN disabled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN issuer   TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN subject  TEXT NOT NULL DEFAULT '' CHECK ((issuer = '') = (subject = ''));
ALTER TABLE users ADD COLUMN email    TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN display  TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN groups   TEXT NOT NULL DEFAULT '[]';
CREATE UNIQUE INDEX users_of_issuer ON users (issuer, subject) WHERE issuer <> '';
ALTER TABLE keys ADD COLUMN approved INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN node_lifetime INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN approved   INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN disabled   INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN rotation   INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN rotated    INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN advertised TEXT NOT NULL DEFAULT '[]';
ALTER TABLE nodes ADD COLUMN routes     TEXT NOT NULL DEFAULT '[]';
UPDATE nodes SET approved = max(created, 1);
UPDATE nodes SET tags = (SELECT json_group_array('tag:' || value) FROM json_each(tags)) WHERE tags <> '[]';
UPDATE keys SET tags = (SELECT json_group_array('tag:' || value) FROM json_each(tags)) WHERE tags <> '[]';
CREATE TABLE documents (
	name    TEXT PRIMARY KEY,
	text    TEXT NOT NULL,
	changed INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
`

const schema = `
CREATE TABLE network (
	one        INTEGER PRIMARY KEY CHECK (one = 1),
	name       BLOB NOT NULL,
	ipv4       TEXT NOT NULL,
	ipv6       TEXT NOT NULL,
	next_node  INTEGER NOT NULL,
	next_relay INTEGER NOT NULL,
	next_key   INTEGER NOT NULL,
	given      TEXT NOT NULL
) STRICT;
CREATE TABLE users (
	name     TEXT PRIMARY KEY,
	created  INTEGER NOT NULL,
	expires  INTEGER NOT NULL,
	disabled INTEGER NOT NULL,
	issuer   TEXT NOT NULL,
	subject  TEXT NOT NULL CHECK ((issuer = '') = (subject = '')),
	email    TEXT NOT NULL,
	display  TEXT NOT NULL,
	groups   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX users_of_issuer ON users (issuer, subject) WHERE issuer <> '';
CREATE TABLE keys (
	id        INTEGER PRIMARY KEY,
	hash      BLOB NOT NULL UNIQUE,
	user      TEXT REFERENCES users (name),
	tags      TEXT NOT NULL,
	reusable  INTEGER NOT NULL,
	ephemeral INTEGER NOT NULL,
	relay     INTEGER NOT NULL,
	created   INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	used      INTEGER NOT NULL,
	uses      INTEGER NOT NULL,
	revoked   INTEGER NOT NULL,
	approved  INTEGER NOT NULL,
	node_lifetime INTEGER NOT NULL
) STRICT;
CREATE INDEX keys_of_user ON keys (user);
CREATE TABLE nodes (
	id         INTEGER PRIMARY KEY,
	machine    BLOB UNIQUE,
	key        BLOB NOT NULL UNIQUE,
	name       TEXT NOT NULL UNIQUE,
	ipv4       TEXT NOT NULL UNIQUE,
	ipv6       TEXT NOT NULL UNIQUE,
	user       TEXT REFERENCES users (name),
	tags       TEXT NOT NULL,
	ephemeral  INTEGER NOT NULL,
	join_key   INTEGER NOT NULL,
	created    INTEGER NOT NULL,
	expires    INTEGER NOT NULL,
	seen       INTEGER NOT NULL,
	gateway    INTEGER NOT NULL CHECK ((gateway <> 0) = (machine IS NULL)),
	approved   INTEGER NOT NULL,
	disabled   INTEGER NOT NULL,
	rotation   INTEGER NOT NULL,
	rotated    INTEGER NOT NULL,
	advertised TEXT NOT NULL,
	routes     TEXT NOT NULL
) STRICT;
CREATE INDEX nodes_of_user ON nodes (user);
CREATE TABLE relays (
	id          INTEGER PRIMARY KEY,
	machine     BLOB NOT NULL UNIQUE,
	key         BLOB NOT NULL UNIQUE,
	name        TEXT NOT NULL UNIQUE,
	url         TEXT NOT NULL,
	udp         TEXT NOT NULL,
	udp_port    INTEGER NOT NULL,
	fingerprint BLOB NOT NULL,
	created     INTEGER NOT NULL
) STRICT;
CREATE TABLE revoked (
	node  INTEGER PRIMARY KEY,
	until INTEGER NOT NULL
) STRICT;
CREATE TABLE documents (
	name    TEXT PRIMARY KEY,
	text    TEXT NOT NULL,
	changed INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
`
