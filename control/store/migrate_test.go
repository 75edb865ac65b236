package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/key"
)

// schema1 is the schema of files of format 1.
const schema1 = `
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
	name    TEXT PRIMARY KEY,
	created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
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
	revoked   INTEGER NOT NULL
) STRICT;
CREATE INDEX keys_of_user ON keys (user);
CREATE TABLE nodes (
	id        INTEGER PRIMARY KEY,
	machine   BLOB NOT NULL UNIQUE,
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
	seen      INTEGER NOT NULL
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
`

// shape is all that SQLite says of the tables of a file: columns, types, rules, indices.
func shape(t *testing.T, s *SQLite) string {
	t.Helper()
	r, err := s.conn.QueryContext(t.Context(), `SELECT m.name, quote(c.name), c.type, c."notnull", c.pk FROM sqlite_schema m, pragma_table_info(m.name) c
		UNION ALL SELECT m.tbl_name, m.type || ' ' || m.name, i."unique", i.origin, i.partial FROM sqlite_schema m, pragma_index_list(m.tbl_name) i WHERE m.name = i.name
		ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b strings.Builder
	for r.Next() {
		var v [5]string
		if err := r.Scan(&v[0], &v[1], &v[2], &v[3], &v[4]); err != nil {
			t.Fatal(err)
		}
		// The indices that SQLite makes by itself keep the name that their table was made with.
		fmt.Fprintln(&b, strings.ReplaceAll(strings.Join(v[:], " "), "nodes2", "nodes"))
	}
	return b.String()
}

// TestADatabaseOfTheFirstFormatIsBroughtUpToDate begins with a file as the first weft made it, a node and its user in it.
func TestADatabaseOfTheFirstFormatIsBroughtUpToDate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weft.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{
		schema1, fmt.Sprintf("PRAGMA application_id = %d", applicationID), "PRAGMA user_version = 1",
		`INSERT INTO users VALUES ('ana', 5)`,
		`INSERT INTO nodes VALUES (7, x'0000000000000000000000000000000000000000000000000000000000000001', x'0000000000000000000000000000000000000000000000000000000000000002',
			'web', '100.64.0.2', 'fd12::7', 'ana', '["x"]', 1, 4, 5, 6, 8)`,
	} {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	db.Close()
	fresh, err := OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "weft.db"))
	if err != nil {
		t.Fatal(err)
	}
	want := shape(t, fresh)
	fresh.Close()
	for range 2 { // it is brought there once
		s, err := OpenSQLite(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		st, err := s.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := shape(t, s); got != want || strings.Count(got, "nodes") < 20 {
			t.Errorf("its tables are\n%sand those of a new file\n%s", got, want)
		}
		machine, _ := key.PublicFrom[key.Machine]([]byte{31: 1})
		n := Node{ID: 7, Name: "web", IPv4: netip.MustParseAddr("100.64.0.2"), IPv6: netip.MustParseAddr("fd12::7"), User: "ana",
			Machine: machine, Ephemeral: true, JoinKey: 4, Created: time.UnixMilli(5).UTC(), Expires: time.UnixMilli(6).UTC(), Seen: time.UnixMilli(8).UTC()}
		if len(st.Nodes) != 1 || st.Nodes[0].Machine != n.Machine || st.Nodes[0].Name != n.Name || st.Nodes[0].Gateway != 0 ||
			st.Nodes[0].IPv6 != n.IPv6 || st.Nodes[0].User != n.User || !st.Nodes[0].Seen.Equal(n.Seen) ||
			!slices.Equal(st.Nodes[0].Tags, []string{"tag:x"}) || !st.Nodes[0].Approved.Equal(n.Created) || !st.Nodes[0].Disabled.IsZero() {
			t.Errorf("nodes are %+v", st.Nodes)
		}
		if err := s.Apply(t.Context(), Batch{DropUser{Name: "ana"}}); !errors.Is(err, ErrConflict) {
			t.Errorf("a user with a node could be dropped: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
