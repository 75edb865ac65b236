package uapi

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/key"
)

// fake is an interface that notes what is wanted of it.
type fake struct {
	mu   sync.Mutex
	is   Interface
	sets []Change
	err  error
}

func (f *fake) Get() (Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.is, nil
}

func (f *fake) Set(c Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.sets = append(f.sets, c)
	}
	return f.err
}

func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sets)
}

func (f *fake) last(t *testing.T) Change {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sets) == 0 {
		t.Fatal("nothing was set")
	}
	return f.sets[len(f.sets)-1]
}

func serve(t *testing.T, dir, name string, dev Device) *Server {
	t.Helper()
	s, err := Serve(dir, name, dev, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// say writes to the socket and returns all that is answered.
func say(t *testing.T, path, text string) string {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	c.(*net.UnixConn).CloseWrite()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOneConversationHasManyRequestsAndEndsWithTheFirstMistake(t *testing.T) {
	dir := t.TempDir()
	dev := &fake{is: Interface{Port: 7}}
	serve(t, dir, "weft0", dev)
	path := filepath.Join(dir, "weft0.sock")
	for text, want := range map[string]string{
		"":                                      "",
		"\n":                                    "",
		"get=1\n\n":                             "listen_port=7\nerrno=0\n\n",
		"get=1\n\nset=1\nfwmark=1\n\nget=1\n\n": "listen_port=7\nerrno=0\n\nerrno=0\n\nlisten_port=7\nerrno=0\n\n",
		"get=1\nfwmark=1\n\n":                   fmt.Sprintf("errno=-%d\n\n", int(syscall.EINVAL)),
		"put=1\n\n":                             fmt.Sprintf("errno=-%d\n\n", int(syscall.EINVAL)),
		"set=1\nno\n\nget=1\n\n":                fmt.Sprintf("errno=-%d\n\n", int(syscall.EINVAL)),
		"set=1\nfwmark=1\n":                     fmt.Sprintf("errno=-%d\n\n", int(syscall.EIO)), // it was not whole
	} {
		before := dev.count()
		if got := say(t, path, text); got != want {
			t.Errorf("%q is answered by %q, want %q", text, got, want)
		}
		if strings.HasPrefix(want, "errno=-") && dev.count() != before {
			t.Errorf("%q was refused, and something was set", text)
		}
	}
	dev.fail(errors.New("the mesh is gone"))
	if got := say(t, path, "set=1\n\n"); got != fmt.Sprintf("errno=-%d\n\n", int(syscall.EIO)) {
		t.Errorf("a failure without a number is answered by %q", got)
	}
}

func TestTheSocketIsTheOwnersAndGoesWithTheServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wireguard")
	s := serve(t, dir, "weft0", &fake{})
	path := filepath.Join(dir, "weft0.sock")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := Serve(dir, "weft0", &fake{}, slog.Default()); !errors.Is(err, ErrTaken) {
		t.Errorf("a second one: %v", err)
	}
	idle, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if err := s.Close(); err != nil { // though somebody is connected and says nothing
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}

	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}) // a killed process leaves one
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	old := serve(t, dir, "weft0", &fake{})
	os.Remove(path) // somebody else takes the name
	other := serve(t, dir, "weft0", &fake{is: Interface{Port: 9}})
	old.Close()
	if got := say(t, path, "get=1\n\n"); !strings.Contains(got, "listen_port=9") {
		t.Errorf("the other's socket answers %q", got)
	}
	other.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(dir, "weft0", &fake{}, slog.Default()); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a file in its place: %v", err)
	}
}

// TestDebiansToolsUnderstandAndAreUnderstood runs wg, which looks in the one directory that there is.
// Wg(8) removes a socket that refuses a connection, and `wg show` may come at any time.
func TestTheSocketRefusesNobodyFromWhenItIsThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weft0.sock")
	refused := 0
	for range 300 {
		up, asked := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(asked)
			for {
				select {
				case <-up:
					return
				default:
				}
				c, err := net.Dial("unix", path)
				if err == nil {
					c.Close()
				} else if errors.Is(err, syscall.ECONNREFUSED) {
					refused++
				}
			}
		}()
		s, err := Serve(dir, "weft0", &fake{}, slog.New(slog.DiscardHandler))
		close(up)
		<-asked
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	if refused > 0 {
		t.Errorf("%d were refused", refused)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDebiansToolsUnderstandAndAreUnderstood(t *testing.T) {
	wg, err := exec.LookPath("wg")
	if err != nil {
		t.Skip("wg (wireguard-tools) is not installed")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for a socket in " + Dir)
	}
	own, phone := private(0x42), private(0x43)
	dev := &fake{is: Interface{Private: own, Port: 41641, Peers: []Peer{{
		Key: phone.Public(), PSK: [32]byte{1}, Endpoint: netip.MustParseAddrPort("[2001:db8::1]:7"), HandshakeAt: time.Now().Add(-90 * time.Second),
		RxBytes: 1 << 20, TxBytes: 512, Keepalive: 25 * time.Second, Allowed: []netip.Prefix{netip.MustParsePrefix("100.64.0.5/32"), netip.MustParsePrefix("fd00::5/128")},
	}}}}
	name := fmt.Sprintf("wefttest%d", os.Getpid()%100000)
	serve(t, Dir, name, dev)
	run := func(args ...string) (string, error) {
		out, err := exec.Command(wg, args...).CombinedOutput()
		return string(out), err
	}
	base64 := func(k key.NodePublic) string {
		b := k.Bytes()
		cmd := exec.Command("base64", "-w0")
		cmd.Stdin = strings.NewReader(string(b[:]))
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	out, err := run("show", name)
	for _, want := range []string{"interface: " + name, "public key: " + base64(own.Public()), "private key: (hidden)", "listening port: 41641", "peer: " + base64(phone.Public()),
		"preshared key: (hidden)", "endpoint: [2001:db8::1]:7", "allowed ips: 100.64.0.5/32, fd00::5/128", "1 minute, 30 seconds ago", "1.00 MiB received, 512 B sent", "every 25 seconds"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("wg show says\n%s%v and not %q", out, err, want)
		}
	}
	out, err = run("showconf", name)
	for _, want := range []string{"ListenPort = 41641", "PrivateKey = ", "PresharedKey = AQAA", "AllowedIPs = 100.64.0.5/32, fd00::5/128", "PersistentKeepalive = 25"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("wg showconf says\n%s%v and not %q", out, err, want)
		}
	}
	if out, err := run("show", "interfaces"); err != nil || !strings.Contains(out, name) {
		t.Errorf("wg knows the interfaces %q, %v", out, err)
	}

	other := private(0x44).Public()
	if out, err := run("set", name, "peer", base64(other), "endpoint", "192.0.2.1:51820", "persistent-keepalive", "7", "allowed-ips", "10.9.0.0/16,fd09::/64"); err != nil {
		t.Fatalf("wg set: %v: %s", err, out)
	}
	want := Change{Peers: []PeerChange{{Key: other, ReplaceAllowed: true, Endpoint: ptr(netip.MustParseAddrPort("192.0.2.1:51820")), Keepalive: ptr(7 * time.Second),
		Allowed: []AllowedChange{{netip.MustParsePrefix("10.9.0.0/16"), false}, {netip.MustParsePrefix("fd09::/64"), false}}}}}
	if diff := cmp.Diff(want, dev.last(t), sameValues); diff != "" {
		t.Error(diff)
	}
	if out, err := run("set", name, "peer", base64(other), "remove"); err != nil || !dev.last(t).Peers[0].Remove {
		t.Errorf("wg set remove: %v: %s: %+v", err, out, dev.last(t))
	}
	dev.fail(&Error{syscall.EPERM, "it is not yours"})
	if out, err := run("set", name, "listen-port", "1"); err == nil || !strings.Contains(out, "Operation not permitted") {
		t.Errorf("wg says of what is refused: %v: %s", err, out)
	}
}
