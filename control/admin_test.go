package control

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// adminWorld is a world with its admin socket open.
func adminWorld(t *testing.T) (*world, *AdminClient, string) {
	w := newWorld(t, func(c *Config) { c.Relay = &weft.Relay{Name: "home"}; c.Fingerprint = bytes.Repeat([]byte{7}, 32) })
	path := filepath.Join(t.TempDir(), SocketFile)
	l, err := ListenAdmin(path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: w.AdminHandler()}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done; w.stop() })
	return w, NewAdminClient(path), path
}

// until polls for something that happens on real connections.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long: %s", what)
		}
	}
}

func TestTheAdministratorDoesEverythingOverTheSocket(t *testing.T) {
	w, c, _ := adminWorld(t)
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	u, err := c.CreateUser(ctx, "ana@example.org")
	check(err)
	if u.Schema != weft.SchemaVersion || u.User.Name != "ana@example.org" || u.User.Created.IsZero() {
		t.Errorf("%+v", u)
	}
	k, err := c.CreateKey(ctx, KeyRequest{User: "ana@example.org", Tags: []string{"robot"}, Reusable: true, Ephemeral: true, Lifetime: time.Hour})
	check(err)
	token, err := wire.ParseToken(k.Token)
	check(err)
	if token.URL != w.config.URL || token.Server != w.config.Keys.Server.Public() || !bytes.Equal(token.Fingerprint, w.config.Fingerprint) || token.Relay {
		t.Errorf("token %+v", token)
	}
	if left := time.Until(k.Key.Expires); k.Key.State != KeyValid || left > time.Hour || left < 59*time.Minute {
		t.Errorf("key %+v", k.Key)
	}
	m := w.machine(token.Secret[:], "arm")
	m.connect()
	until(t, "the machine joins", func() bool { return m.id() != 0 })

	nodes, err := c.Nodes(ctx)
	check(err)
	if n := nodes.Nodes[0]; n.Name != "arm" || n.User != "ana@example.org" || !n.Online || n.Machine != m.machine.String() || n.JoinKey != k.Key.ID || n.OS != "linux" || n.Remote == "" {
		t.Errorf("%+v", n)
	}
	users, err := c.Users(ctx)
	check(err)
	if len(users.Users) != 1 || users.Users[0].Nodes != 1 {
		t.Errorf("%+v", users)
	}
	if _, err := c.RemoveUser(ctx, "ana@example.org"); weft.CodeOf(err) != weft.CodeDenied || !strings.Contains(err.Error(), "arm") {
		t.Errorf("a user with a node: %v", err)
	}
	renamed, err := c.RenameNode(ctx, "arm", "leg")
	check(err)
	ended, err := c.ExpireNode(ctx, "1", ExpireRequest{})
	check(err)
	if renamed.Node.Name != "leg" || ended.Node.Standing != "expired" {
		t.Errorf("%+v, %+v", renamed, ended)
	}
	_, err = c.RemoveNode(ctx, "leg")
	check(err)

	if _, err = c.ExpireKey(ctx, k.Key.ID, ExpireRequest{In: time.Minute}); err != nil {
		t.Error(err)
	}
	_, err = c.RemoveKey(ctx, k.Key.ID)
	check(err)
	rk, err := c.CreateKey(ctx, KeyRequest{Relay: true})
	check(err)
	if token, err = wire.ParseToken(rk.Token); err != nil || !token.Relay {
		t.Errorf("token %+v, %v", token, err)
	}
	r := w.relayMachine(token.Secret[:], "far")
	r.connect()
	until(t, "the relay joins", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.welcome != nil })
	relays, err := c.Relays(ctx)
	check(err)
	if len(relays.Relays) != 2 || !relays.Relays[0].Embedded || relays.Relays[1].Name != "far" || !relays.Relays[1].Connected {
		t.Errorf("%+v", relays)
	}
	_, err = c.RemoveRelay(ctx, "far")
	check(err)
	_, err = c.RemoveUser(ctx, "ana@example.org")
	check(err)

	keys, err := c.Keys(ctx)
	check(err)
	if len(keys.Keys) != 2 || keys.Keys[0].State != KeyRevoked || keys.Keys[0].Uses != 1 || keys.Keys[1].State != KeySpent {
		t.Errorf("%+v", keys)
	}
	st, err := c.Status(ctx)
	check(err)
	if st.Schema != weft.SchemaVersion || st.Key != w.config.Keys.Server.Public().String() || st.Nodes != 0 || st.Relays != 1 || len(st.Problems) != 0 {
		t.Errorf("%+v", st)
	}
	m.hangUp()
	r.hangUp()
}

func TestWhatTheAdministratorAsksWronglyIsToldInASentence(t *testing.T) {
	w, c, _ := adminWorld(t)
	ctx := t.Context()
	for i := range 2 {
		m := w.machine(w.invite(KeyRequest{}), []string{"a", "b"}[i])
		m.connect()
		until(t, "the machine joins", func() bool { return m.id() != 0 })
		defer m.hangUp()
	}
	_, _ = c.CreateUser(ctx, "ana")
	errs := map[string]error{}
	try := func(what string, code weft.Code, err error) {
		t.Helper()
		errs[what] = err
		if weft.CodeOf(err) != code {
			t.Errorf("%s: %q %v, want %q", what, weft.CodeOf(err), err, code)
		}
	}
	_, err := c.CreateUser(ctx, "ana")
	try("a user twice", weft.CodeNameTaken, err)
	_, err = c.CreateUser(ctx, "\x1b[2J")
	try("a user that plays tricks", weft.CodeBadRequest, err)
	_, err = c.RemoveUser(ctx, "nobody")
	try("no user", weft.CodeNotFound, err)
	_, err = c.CreateKey(ctx, KeyRequest{User: "nobody"})
	try("a key of nobody", weft.CodeNotFound, err)
	_, err = c.CreateKey(ctx, KeyRequest{Tags: []string{"Not a tag"}})
	try("a bad tag", weft.CodeBadRequest, err)
	_, err = c.CreateKey(ctx, KeyRequest{Tags: []string{"a", "a"}})
	try("a tag twice", weft.CodeBadRequest, err)
	_, err = c.CreateKey(ctx, KeyRequest{Tags: make([]string, 50)})
	try("many tags", weft.CodeBadRequest, err)
	_, err = c.CreateKey(ctx, KeyRequest{Lifetime: -1})
	try("a key of the past", weft.CodeBadRequest, err)
	_, err = c.CreateKey(ctx, KeyRequest{Lifetime: 1<<63 - 1})
	try("a key of all times", weft.CodeBadRequest, err)
	_, err = c.CreateKey(ctx, KeyRequest{Relay: true, Ephemeral: true})
	try("an ephemeral relay", weft.CodeBadRequest, err)
	_, err = c.ExpireKey(ctx, 99, ExpireRequest{})
	try("no key", weft.CodeNotFound, err)
	_, err = c.ExpireKey(ctx, 1, ExpireRequest{Never: true})
	try("a key for ever", weft.CodeBadRequest, err)
	_, err = c.RemoveKey(ctx, 99)
	try("no key to remove", weft.CodeNotFound, err)
	_, err = c.RenameNode(ctx, "a", "b")
	try("a name that is taken", weft.CodeNameTaken, err)
	for _, bad := range []string{"", "Upper", "a.b", "localhost", "wpad", "17", "-x"} {
		_, err = c.RenameNode(ctx, "a", bad)
		try("the name "+bad, weft.CodeBadRequest, err)
	}
	_, err = c.RenameNode(ctx, "zz", "c")
	try("no node to rename", weft.CodeNotFound, err)
	_, err = c.ExpireNode(ctx, "a", ExpireRequest{In: -1})
	try("a node's end in the past", weft.CodeBadRequest, err)
	_, err = c.RemoveNode(ctx, "99")
	try("no node", weft.CodeNotFound, err)
	_, err = c.RemoveNode(ctx, "4294967296")
	try("no number", weft.CodeNotFound, err)
	_, err = c.RemoveRelay(ctx, "home")
	try("the server's relay", weft.CodeDenied, err)
	_, err = c.RemoveRelay(ctx, "../x")
	try("no relay", weft.CodeNotFound, err)
	for what, err := range errs {
		if m := err.Error(); strings.ContainsAny(m, "\x1b\n") || len(m) < 15 {
			t.Errorf("%s: %q is no sentence for a terminal", what, m)
		}
	}
}

func TestNoListShowsASecret(t *testing.T) {
	w, c, path := adminWorld(t)
	k, err := c.CreateKey(t.Context(), KeyRequest{Reusable: true})
	if err != nil {
		t.Fatal(err)
	}
	token, _ := wire.ParseToken(k.Token)
	secrets := []string{k.Token, string(token.Secret[:]), w.config.Keys.Server.Reveal(), w.config.Keys.Signing.Reveal()}
	hash := hashSecret(token.Secret[:])
	for _, what := range []string{"status", "users", "keys", "nodes", "relays"} {
		body := raw(t, path, "GET", "/v1/"+what, adminHost, nil, "")
		if !bytes.Contains(body, []byte(`"schema_version":2`)) {
			t.Errorf("%s has no schema_version: %s", what, body)
		}
		for _, s := range secrets {
			if bytes.Contains(body, []byte(s)) {
				t.Errorf("%s shows a secret", what)
			}
		}
		var doc any
		if err := json.Unmarshal(body, &doc); err != nil || bytes.Contains(body, hash[:8]) || bytes.Contains(body, []byte("hash")) {
			t.Errorf("%s: %v, %s", what, err, body)
		}
	}
	st, _ := w.store.Load(t.Context())
	if b, _ := json.Marshal(st); bytes.Contains(b, token.Secret[:]) || st.Keys[0].Hash != hash {
		t.Error("the secret is stored")
	}
}

func raw(t *testing.T, socket, method, path, host string, header map[string]string, body string) []byte {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheAdminAPIIsNotForBrowsersAndTakesNoNonsense(t *testing.T) {
	w, _, path := adminWorld(t)
	asJSON := map[string]string{"Content-Type": "application/json"}
	for what, c := range map[string]struct {
		method, path, host string
		header             map[string]string
		body               string
		code               weft.Code
		says               string
	}{
		"another host":    {"GET", "/v1/status", "localhost", nil, "", weft.CodeDenied, ""},
		"a rebound name":  {"POST", "/v1/users", "attacker.example:80", asJSON, `{"name":"x"}`, weft.CodeDenied, ""},
		"an origin":       {"POST", "/v1/users", adminHost, map[string]string{"Content-Type": "application/json", "Origin": "null"}, `{"name":"x"}`, weft.CodeDenied, ""},
		"a browser":       {"GET", "/v1/keys", adminHost, map[string]string{"Sec-Fetch-Site": "same-origin"}, "", weft.CodeDenied, ""},
		"a form":          {"POST", "/v1/users", adminHost, map[string]string{"Content-Type": "text/plain"}, `{"name":"x"}`, weft.CodeBadRequest, ""},
		"too much":        {"POST", "/v1/users", adminHost, asJSON, `{"name":"` + strings.Repeat("x", maxAdminBody) + `"}`, weft.CodeBadRequest, "longer than"},
		"no JSON":         {"POST", "/v1/users", adminHost, asJSON, `name=x`, weft.CodeBadRequest, ""},
		"two documents":   {"POST", "/v1/users", adminHost, asJSON, `{"name":"x"}{"name":"y"}`, weft.CodeBadRequest, ""},
		"a mistyped wish": {"POST", "/v1/keys", adminHost, asJSON, `{"reuseable":true}`, weft.CodeBadRequest, ""},
		"no such thing":   {"GET", "/v1/secrets", adminHost, nil, "", weft.CodeNotFound, ""},
		"no such method":  {"PUT", "/v1/users", adminHost, asJSON, "{}", weft.CodeNotFound, ""},
		"no key number":   {"DELETE", "/v1/keys/one", adminHost, nil, "", weft.CodeBadRequest, ""},
	} {
		b := raw(t, path, c.method, c.path, c.host, c.header, c.body)
		var e struct {
			Schema int `json:"schema_version"`
			weft.Error
		}
		if err := json.Unmarshal(b, &e); err != nil || e.Code != c.code || e.Message == "" || !strings.Contains(e.Message, c.says) || e.Schema != weft.SchemaVersion {
			t.Errorf("%s: %s (%v), want %q", what, b, err, c.code)
		}
	}
	if len(w.Users()) != 0 || len(w.Keys()) != 0 {
		t.Error("something was made")
	}
}

func TestOnlyTheOwnerMayOpenTheAdminSocket(t *testing.T) {
	_, _, path := adminWorld(t)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v)", st.Mode(), err)
	}
}

func TestASocketOfAKilledServerIsReplacedAndAFileIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), SocketFile)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	l, err = ListenAdmin(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(path, []byte("dear diary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenAdmin(path); err == nil {
		t.Error("a file was replaced")
	}
	if _, err := ListenAdmin("/" + strings.Repeat("x", 200)); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf("error %v", err)
	}
}

func TestAMissingServerIsSaid(t *testing.T) {
	_, err := NewAdminClient(filepath.Join(t.TempDir(), SocketFile)).Status(t.Context())
	if weft.CodeOf(err) != weft.CodeUnavailable || !strings.Contains(err.Error(), "weft server") {
		t.Errorf("error %v", err)
	}
}
