package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft"
)

// startDaemon runs a daemon in userspace mode that belongs to no network.
func startDaemon(t *testing.T) (*Client, string) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	ready := make(chan weft.Status, 1)
	d, err := New(Config{StateDir: filepath.Join(dir, "state"), Socket: socket, Userspace: true,
		Ready: func(s weft.Status) { ready <- s }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the daemon ended with: %v", err)
		}
	})
	select {
	case s := <-ready:
		if s.State != weft.NeedsJoin {
			t.Fatalf("state is %s", s.State)
		}
	case err := <-ended:
		ended <- nil
		t.Fatalf("the daemon ended: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("the daemon is not ready")
	}
	return NewClient(socket), socket
}

func TestTheDaemonAnswersBeforeItBelongsToANetwork(t *testing.T) {
	c, _ := startDaemon(t)
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.State != weft.NeedsJoin || s.Schema != weft.SchemaVersion || s.Peers == nil || s.Problems == nil {
		t.Errorf("status is %+v", s)
	}
	for name, err := range map[string]error{
		"up":     c.Up(t.Context(), UpRequest{}),
		"logout": c.Logout(t.Context()),
	} {
		if weft.CodeOf(err) != weft.CodeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Ping(t.Context(), "bob", time.Second); weft.CodeOf(err) != weft.CodeUnavailable {
		t.Errorf("ping: %v", err)
	}
	if err := c.Up(t.Context(), UpRequest{Token: "weft1_AAAA"}); weft.CodeOf(err) != weft.CodeBadToken {
		t.Errorf("up with a token that is cut: %v", err)
	}
}

func TestNoDaemonIsSaidToBeNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if _, err := NewClient(socket).Status(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without a socket: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if _, err := NewClient(socket).Status(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("with the socket of a dead daemon: %v", err)
	}
}

// A web page that rebinds its name to the socket's host, or posts across sites (CVE-2022-41924).
func TestARequestThatABrowserWasTrickedIntoIsRefused(t *testing.T) {
	c, _ := startDaemon(t)
	for name, change := range map[string]func(*http.Request){
		"foreign host":   func(r *http.Request) { r.Host = "evil.example" },
		"localhost":      func(r *http.Request) { r.Host = "localhost" },
		"foreign origin": func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"null origin":    func(r *http.Request) { r.Header.Set("Origin", "null") },
		"fetch metadata": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
	} {
		for _, path := range []string{"GET /v1/status", "POST /v1/down"} {
			method, path, _ := strings.Cut(path, " ")
			r, err := http.NewRequestWithContext(t.Context(), method, "http://"+apiHost+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			change(r)
			resp, err := c.http.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %s %s is answered with %s", name, method, path, resp.Status)
			}
		}
	}
}

func TestAnotherUserMayLookAndNotTouch(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	_, socket := startDaemon(t)
	for dir := filepath.Dir(socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = 65534
	code := func(method, path string) string {
		cmd := exec.CommandContext(t.Context(), "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", socket,
			"-X", method, "http://"+apiHost+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := code("GET", "/v1/status"); got != "200" {
		t.Errorf("status is answered with %s", got)
	}
	if got := code("GET", "/v1/profile/heap"); got != "403" {
		t.Errorf("a profile is asked for and answered with %s", got)
	}
	for _, path := range []string{"/v1/down", "/v1/logout", "/v1/up"} {
		if got := code("POST", path); got != "403" {
			t.Errorf("%s is answered with %s", path, got)
		}
	}
}

func TestARequestLongerThanAnyTokenIsRefused(t *testing.T) {
	c, _ := startDaemon(t)
	err := c.Up(t.Context(), UpRequest{Token: strings.Repeat("x", maxRequest)})
	if weft.CodeOf(err) != weft.CodeBadRequest {
		t.Errorf("up with %d bytes: %v", maxRequest, err)
	}
}

func TestTwoDaemonsDoNotShareASocket(t *testing.T) {
	_, socket := startDaemon(t)
	d, err := New(Config{StateDir: t.TempDir(), Socket: socket, Userspace: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("the second ended with: %v", err)
	}
}

func FuzzAPIRequest(f *testing.F) {
	f.Add("POST", "/v1/up", []byte(`{"token":"weft1_AAAA"}`))
	f.Add("POST", "/v1/ping", []byte(`{"peer":"bob","timeout_ms":-1}`))
	f.Add("PUT", "/v1/settings", []byte(`{"port":70000}`))
	d := &Daemon{calls: make(chan func()), posts: make(chan func()), outbox: newOutbox(), log: silent}
	ctx, cancel := context.WithCancel(context.Background())
	d.ctx = ctx
	cancel() // nothing is done: what is fuzzed is reading requests
	state, err := OpenState(f.TempDir(), silent)
	if err != nil {
		f.Fatal(err)
	}
	d.state = state
	h := d.apiHandler()
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		r, err := http.NewRequest(method, "http://"+apiHost+"/", strings.NewReader(string(body)))
		if err != nil {
			return
		}
		r.URL.Path = path
		h.ServeHTTP(discard{}, r)
	})
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
