package member

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/control"
	"weft/key"
	"weft/wire"
)

var silent = slog.New(slog.DiscardHandler)

// coordinator is a real server over HTTP.
func coordinator(t *testing.T) (*control.Server, string) {
	t.Helper()
	dir, err := control.OpenDir(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var srv *control.Server
	web := httptest.NewUnstartedServer(nil)
	url := "http://" + web.Listener.Addr().String()
	srv, err = control.New(t.Context(), control.Config{Keys: dir.Keys, Store: dir.Store, URL: url, Log: silent})
	if err != nil {
		t.Fatal(err)
	}
	web.Config.Handler = srv
	web.Start()
	t.Cleanup(func() {
		srv.Close()
		web.Close()
		dir.Close()
	})
	return srv, url
}

func token(t *testing.T, srv *control.Server, r control.KeyRequest) wire.Token {
	t.Helper()
	_, k, err := srv.CreateKey(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func open(t *testing.T, dir string) *State {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func within(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not happen", what)
	}
}

func TestARelayJoinsHearsOfRemovedNodesAndKnowsBothAfterARestart(t *testing.T) {
	srv, _ := coordinator(t)
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.Join(token(t, srv, control.KeyRequest{Relay: true})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	welcomed, told := make(chan struct{}, 4), make(chan struct{}, 4)
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, Config{
			Hello:    wire.HelloRelay{Key: s.Relay.Public(), Name: "far", URL: "https://192.0.2.9", UDPPort: 3478},
			Logger:   silent,
			Welcomed: func(key.SigningPublic) { welcomed <- struct{}{} },
			Revoked:  func([]weft.NodeID) { told <- struct{}{} },
		})
	}()
	within(t, "the welcome", welcomed)
	within(t, "the word of removed nodes", told)
	if relays := srv.Relays(); !slices.ContainsFunc(relays, func(r control.RelayInfo) bool { return r.Name == "far" && r.Key == s.Relay.Public() }) {
		t.Errorf("the server knows %+v", relays)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	s.Close()

	again := open(t, dir)
	defer again.Close()
	if again.Signing != srv.Signing() || again.Relay.Public() != s.Relay.Public() || again.Secret != nil {
		t.Errorf("after a restart it knows %+v", again)
	}
	if st, err := os.Stat(filepath.Join(dir, stateFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("its file: %v, %v", st.Mode(), err)
	}
}

func TestARelayThatIsRefusedEndsWithTheReason(t *testing.T) {
	srv, _ := coordinator(t)
	k := token(t, srv, control.KeyRequest{Relay: true})
	k.Secret[0]++
	s := open(t, t.TempDir())
	defer s.Close()
	if err := s.Join(k); err != nil {
		t.Fatal(err)
	}
	err := s.Run(t.Context(), Config{
		Hello: wire.HelloRelay{Key: s.Relay.Public(), Name: "far", URL: "https://192.0.2.9"}, Logger: silent,
		Welcomed: func(key.SigningPublic) { t.Error("welcomed") }, Revoked: func([]weft.NodeID) {},
	})
	if weft.CodeOf(err) != weft.CodeBadToken {
		t.Errorf("ended with %v", err)
	}
}

func TestANodesTokenDoesNotMakeARelay(t *testing.T) {
	srv, _ := coordinator(t)
	s := open(t, t.TempDir())
	defer s.Close()
	if err := s.Join(token(t, srv, control.KeyRequest{})); weft.CodeOf(err) != weft.CodeBadToken {
		t.Errorf("joined: %v", err)
	}
	if s.URL != "" {
		t.Errorf("and remembers %s", s.URL)
	}
}

func TestARelayDoesNotChangeItsNetworkByAToken(t *testing.T) {
	one, _ := coordinator(t)
	other, _ := coordinator(t)
	s := open(t, t.TempDir())
	defer s.Close()
	s.Server, s.URL, s.Signing = token(t, one, control.KeyRequest{Relay: true}).Server, "https://192.0.2.1", one.Signing()
	if err := s.Join(token(t, one, control.KeyRequest{Relay: true})); err != nil {
		t.Errorf("its own network's token: %v", err)
	}
	if err := s.Join(token(t, other, control.KeyRequest{Relay: true})); err == nil || !strings.Contains(err.Error(), "--data") {
		t.Errorf("another network's token: %v", err)
	}
}

func TestADamagedStateIsRefusedAndLeftAsItIs(t *testing.T) {
	dir := t.TempDir()
	for _, damaged := range []string{"", "{", `{"machine_key":"x"}`} {
		path := filepath.Join(dir, stateFile)
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(dir); err == nil {
			s.Close()
			t.Errorf("took %q", damaged)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != damaged {
			t.Errorf("%q became %q (%v)", damaged, b, err)
		}
	}
	if _, err := Open("/dev/null/x"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that cannot be: %v", err)
	}
}
