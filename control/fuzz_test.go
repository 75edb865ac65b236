package control

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"weft"
)

// FuzzSession has a machine say anything at all, as a stranger or as a member, one message a line. Whatever it says,
// the server answers or ends the stream, lets no stranger in, and everybody else's map stays right.
func FuzzSession(f *testing.F) {
	const hello = `{"hello":{"version":"1","node_key":"nodekey:CQAAAAAAAAAHAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","name":"x"}}`
	for _, s := range []string{
		"", "\n", "{}", hello, hello + "\n" + hello, `{"ping":{"n":18446744073709551615}}`, `{"logout":{}}`, `{"logout":null}`,
		`{"update":{"candidates":[{"addr":"192.0.2.1:1","kind":"host"}],"home_relay":1,"nat":"x"}}` + "\n" + `{"ping":{"n":1}}`,
		`{"update":{"candidates":[{"addr":"","kind":"?"}],"home_relay":65535}}`, `{"update":{"candidates":null}}`,
		`{"hello":{"relay":{"key":"relaykey:CQAAAAAAAAAHAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","name":"r","url":"https://r"}}}`,
		`{"hello":{"relay":{"udp":["0.0.0.0:0","[::]:1"]}},"ping":{}}`, `{"hello":{"epoch":"0","map_version":18446744073709551615}}`,
		"[[[[[[[[", `{"hello":{"secret":"AAAA"}}`, "\x00\xff", `{"hello":{"name":"\u0000\ud800"}}`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, said []byte, member bool) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Relay = &weft.Relay{Name: "home"} })
			defer w.stop()
			other := w.join(KeyRequest{}, "other")
			m := w.machine(w.invite(KeyRequest{}), "m")
			if member {
				m.connect()
			} else {
				m.dial()
			}
			for line := range bytes.Lines(said) {
				if m.conn.WriteMessage(bytes.TrimSuffix(line, []byte("\n"))) != nil {
					break
				}
			}
			settle()
			if err := other.checkMap(); err != nil {
				t.Error(err)
			}
			if !m.gone() && m.has {
				if err := m.checkMap(); err != nil {
					t.Error(err)
				}
			}
			if n := len(w.Nodes()); n > 2 || !member && n != 1 || len(w.Relays()) != 1 {
				t.Errorf("%d nodes, %d relays", n, len(w.Relays()))
			}
			// What everybody is told is JSON without surprises, and what is stored is what is told.
			for _, n := range w.Nodes() {
				if b, err := json.Marshal(n); err != nil || bytes.ContainsRune(b, '\x1b') {
					t.Errorf("%s, %v", b, err)
				}
			}
			st, err := w.store.Load(context.Background())
			if err != nil || len(st.Nodes) != len(w.Nodes()) {
				t.Errorf("%d nodes are stored (%v)", len(st.Nodes), err)
			}
		})
	})
}

// FuzzAdmin sends any request to the admin API.
func FuzzAdmin(f *testing.F) {
	for _, s := range [][3]string{
		{"GET", "/v1/status", ""}, {"POST", "/v1/users", `{"name":"x"}`}, {"POST", "/v1/keys", `{"tags":["a"],"lifetime":-1}`},
		{"DELETE", "/v1/nodes/a", ""}, {"POST", "/v1/nodes/a/rename", `{"name":"b"}`}, {"POST", "/v1/nodes/1/expire", `{"in":9223372036854775807}`},
		{"DELETE", "/v1/users/..%2f", ""}, {"POST", "/v1/keys/4294967296/expire", `{}`}, {"DELETE", "/v1/relays/%00", ""}, {"OPTIONS", "*", ""},
	} {
		f.Add(s[0], s[1], []byte(s[2]))
	}
	w := newWorld(f)
	f.Cleanup(w.stop)
	h := w.AdminHandler()
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		r, err := http.NewRequest(method, "http://"+adminHost+path, bytes.NewReader(body))
		if err != nil {
			t.Skip()
		}
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		var doc struct {
			Schema  int    `json:"schema_version"`
			Message string `json:"message"`
		}
		if rec.Code >= 300 && rec.Code < 400 {
			return // the mux cleans paths
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || doc.Schema != weft.SchemaVersion || rec.Code != 200 && doc.Message == "" || rec.Code == 500 {
			t.Errorf("%s %q %q: %d %s (%v)", method, path, body, rec.Code, rec.Body, err)
		}
	})
}
