package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"weft/key"
)

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
	for range 2 { // it is brought there once
		s, err := OpenSQLite(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		st, err := s.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		machine, _ := key.PublicFrom[key.Machine]([]byte{31: 1})
		n := Node{ID: 7, Name: "web", IPv4: netip.MustParseAddr("100.64.0.2"), IPv6: netip.MustParseAddr("fd12::7"), User: "ana",
			Machine: machine, Ephemeral: true, JoinKey: 4, Created: time.UnixMilli(5).UTC(), Expires: time.UnixMilli(6).UTC(), Seen: time.UnixMilli(8).UTC()}
		if len(st.Nodes) != 1 || st.Nodes[0].Machine != n.Machine || st.Nodes[0].Name != n.Name || st.Nodes[0].Gateway != 0 ||
			st.Nodes[0].IPv6 != n.IPv6 || st.Nodes[0].User != n.User || !st.Nodes[0].Seen.Equal(n.Seen) || len(st.Nodes[0].Tags) != 1 {
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
