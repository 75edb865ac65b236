//go:build linux

package host

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

// machine is a root directory with an /etc and a /run, and a state directory.
type machine struct {
	*testing.T
	root  string
	state string
	env   *resolverEnv
	log   strings.Builder
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{T: t, root: t.TempDir(), state: t.TempDir()}
	m.env = machineEnv(m.root)
	for _, d := range []string{"/etc", "/run/systemd/resolve"} {
		if err := os.MkdirAll(m.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func machineEnv(root string) *resolverEnv {
	return &resolverEnv{
		root:       root,
		bus:        func(context.Context) (*dbus.Conn, error) { return nil, errors.New("this machine has no bus") },
		linkIndex:  func(name string) (int, bool, error) { return 42, name == "weft0", nil },
		resolvconf: func() (string, bool) { return "", false },
		foreign:    func() bool { return false },
		mountPoint: isMountPoint,
		hostname:   func() (string, error) { return "laptop", nil },
	}
}

func (m *machine) path(p string) string { return filepath.Join(m.root, p) }

func (m *machine) write(p, text string) {
	m.Helper()
	if err := os.WriteFile(m.path(p), []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) link(target, p string) {
	m.Helper()
	if err := os.Symlink(target, m.path(p)); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) read(p string) string {
	m.Helper()
	text, err := os.ReadFile(m.path(p))
	if err != nil {
		m.Fatal(err)
	}
	return string(text)
}

func testResolverConfig(state string) ResolverConfig {
	return ResolverConfig{
		Interface: "weft0",
		Server:    netip.MustParseAddr("100.64.0.7"),
		Domains:   []string{"weft.internal"},
		Search:    []string{"weft.internal"},
		StateDir:  state,
	}
}

func (m *machine) configure() (*Resolver, error) {
	cfg := testResolverConfig(m.state)
	cfg.Logger = slog.New(slog.NewTextHandler(&m.log, nil))
	return configureResolver(context.Background(), m.env, cfg)
}

func (m *machine) mustConfigure(mode resolverMode) *Resolver {
	m.Helper()
	r, err := m.configure()
	if err != nil {
		m.Fatal(err)
	}
	if r.Mode() != string(mode) {
		m.Fatalf("wired by way of %s, want %s", r.Mode(), mode)
	}
	return r
}

func (m *machine) repair() {
	m.Helper()
	if err := repairResolver(m.env, m.state); err != nil {
		m.Fatal(err)
	}
}

// firstServer is the server that the C library asks first.
func (m *machine) firstServer() string {
	m.Helper()
	list := nameservers([]byte(m.read(resolvConfPath)))
	if len(list) == 0 {
		return ""
	}
	return list[0].String()
}

// tree is all that is in /etc and the state directory: names, permissions, link targets
// and contents.
func (m *machine) tree() []string {
	m.Helper()
	var out []string
	for _, top := range []string{m.path("/etc"), m.state} {
		err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err != nil || p == top {
				return err
			}
			st, err := d.Info()
			if err != nil {
				return err
			}
			text := ""
			switch {
			case st.Mode()&fs.ModeSymlink != 0:
				text, err = os.Readlink(p)
			case st.Mode().IsRegular():
				var b []byte
				b, err = os.ReadFile(p)
				text = string(b)
			}
			out = append(out, strings.Join([]string{filepath.Base(p), st.Mode().String(), text}, "|"))
			return err
		})
		if err != nil {
			m.Fatal(err)
		}
	}
	return out
}

// aResolvConf is a resolv.conf as it may be found.
type aResolvConf struct {
	name string
	make func(*machine)
}

func resolvConfs() []aResolvConf {
	plain := func(text string, perm fs.FileMode) func(*machine) {
		return func(m *machine) {
			m.write(resolvConfPath, text)
			if err := os.Chmod(m.path(resolvConfPath), perm); err != nil {
				m.Fatal(err)
			}
		}
	}
	return []aResolvConf{
		{"a file", plain("# dhcp\nsearch home.example\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n", 0o644)},
		{"a file with odd permissions and no newline", plain("nameserver 192.0.2.1", 0o755)},
		{"a long file", plain(strings.Repeat("# no end of remarks\n", 500)+"nameserver 192.0.2.1\n", 0o644)},
		{"an empty file", plain("", 0o600)},
		{"none", func(*machine) {}},
		{"a link", func(m *machine) {
			if err := os.MkdirAll(m.path("/run/NetworkManager"), 0o755); err != nil {
				m.Fatal(err)
			}
			m.write("/run/NetworkManager/resolv.conf", "nameserver 192.0.2.1\n")
			m.link("../run/NetworkManager/resolv.conf", resolvConfPath)
		}},
		{"a link to nothing", func(m *machine) { m.link("../run/gone/resolv.conf", resolvConfPath) }},
	}
}

func TestResolvConfIsPutBackAsItWas(t *testing.T) {
	for _, tc := range resolvConfs() {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			tc.make(m)
			before := m.tree()
			r := m.mustConfigure(modeFile)
			if got := m.firstServer(); got != "100.64.0.7" {
				t.Errorf("the first server is %q", got)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, m.tree()); diff != "" {
				t.Errorf("after all (-before +after):\n%s", diff)
			}
			if err := r.Close(); err != nil {
				t.Errorf("closing again: %v", err)
			}
			if r.Refresh(t.Context()) == nil {
				t.Error("put in place again after its end")
			}
		})
	}
}

func TestABackupLiesBesideWhileTheFileIsOurs(t *testing.T) {
	m := newMachine(t)
	const former = "nameserver 192.0.2.1"
	m.write(resolvConfPath, former)
	m.mustConfigure(modeFile)
	if got := m.read(resolvConfPath + ".before-weft0"); got != former {
		t.Errorf("the backup holds %q", got)
	}
	if text := m.read(resolvConfPath); !strings.Contains(text, resolvConfPath+".before-weft0") {
		t.Errorf("our file does not say where the former one is:\n%s", text)
	}
}

// interrupted stops a configuration or a repair at each of its system calls that
// matter, by going through the states that lie between.
func TestAfterBeingKilledAtAnyPointTheNextStartPutsResolvConfBack(t *testing.T) {
	for _, tc := range resolvConfs() {
		t.Run(tc.name, func(t *testing.T) {
			for _, point := range []struct {
				name string
				kill func(m *machine, f *savedFile)
			}{
				{"before the backup", func(m *machine, f *savedFile) { m.must(f.restore()) }},
				{"before the new file", func(m *machine, f *savedFile) {
					m.must(f.restore())
					if f.Kind != kindNone {
						m.must(f.backUp())
					}
				}},
				{"in the middle of the new file", func(m *machine, f *savedFile) {
					m.must(f.restore())
					m.write("/etc/"+tempPrefix("resolv.conf")+"123", "# weft: we")
				}},
				{"while all was in place", func(*machine, *savedFile) {}},
				{"without its backup", func(m *machine, f *savedFile) { _ = os.Remove(f.Backup) }},
				{"with a backup that somebody changed", func(m *machine, f *savedFile) {
					_ = os.Remove(f.Backup)
					m.must(os.WriteFile(f.Backup, []byte("nameserver 203.0.113.1\n"), 0o644))
				}},
				{"before the record was dropped", func(m *machine, f *savedFile) {
					m.must(m.env.unwireFile(&savedResolver{File: f, Interface: "weft0", Server: netip.MustParseAddr("100.64.0.7")}))
				}},
			} {
				t.Run(point.name, func(t *testing.T) {
					m := newMachine(t)
					tc.make(m)
					before := m.tree()
					m.mustConfigure(modeFile)
					s, err := loadResolver(m.state)
					if err != nil {
						t.Fatal(err)
					}
					point.kill(m, s.File)
					m.repair()
					// A temporary file waits for the next write an hour later.
					m.must(os.RemoveAll(m.path("/etc/" + tempPrefix("resolv.conf") + "123")))
					if diff := cmp.Diff(before, m.tree()); diff != "" {
						t.Errorf("after the repair (-before +after):\n%s", diff)
					}
					m.repair() // nothing left to do
				})
			}
		})
	}
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func helpResolver() {
	env := machineEnv(os.Getenv("WEFT_HOST_TEST_ROOT"))
	_, err := configureResolver(context.Background(), env, testResolverConfig(os.Getenv("WEFT_HOST_TEST_STATE")))
	if err != nil {
		untilKilled(err.Error())
	}
	untilKilled("wired")
}

func TestWhatAKilledProcessLeftIsPutBackByTheNext(t *testing.T) {
	m := newMachine(t)
	m.write(resolvConfPath, "nameserver 192.0.2.1\n")
	before := m.tree()
	line, kill := helper(t, "resolver", "WEFT_HOST_TEST_ROOT="+m.root, "WEFT_HOST_TEST_STATE="+m.state)
	if line != "wired" {
		t.Fatal(line)
	}
	kill()
	if got := m.firstServer(); got != "100.64.0.7" {
		t.Fatalf("the killed process left %q as the first server: nothing is shown here", got)
	}
	// The next start goes on from there, and its end puts back what was there
	// at first.
	r := m.mustConfigure(modeFile)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, m.tree()); diff != "" {
		t.Errorf("after all (-before +after):\n%s", diff)
	}
}

func TestUpstreamsFollowTheFileBehindALink(t *testing.T) {
	m := newMachine(t)
	m.must(os.MkdirAll(m.path("/run/NetworkManager"), 0o755))
	m.write("/run/NetworkManager/resolv.conf", "nameserver 192.0.2.1\nnameserver 2001:db8::1\nnameserver 192.0.2.3\n")
	m.link("/run/NetworkManager/resolv.conf", resolvConfPath) // absolute: seen from the machine's root
	// Reading it follows the link to the test machine's own /run.
	m.must(os.Remove(m.path(resolvConfPath)))
	m.link("../run/NetworkManager/resolv.conf", resolvConfPath)
	r := m.mustConfigure(modeFile)
	if diff := cmp.Diff([]string{"192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.3:53"}, upstreamsOf(r)); diff != "" {
		t.Errorf("upstreams (-want +got):\n%s", diff)
	}
	m.write("/run/NetworkManager/resolv.conf", "nameserver 198.51.100.1\nnameserver 100.64.0.7\n")
	if diff := cmp.Diff([]string{"198.51.100.1:53"}, upstreamsOf(r)); diff != "" {
		t.Errorf("upstreams in another network (-want +got):\n%s", diff)
	}
	m.must(r.Close())
	if got := r.Upstreams(); got != nil {
		t.Errorf("after the end: %v", got)
	}
}

func TestWithoutANameServerTheMachinesOwnIsAsked(t *testing.T) {
	m := newMachine(t)
	if diff := cmp.Diff([]string{"127.0.0.1:53"}, upstreamsOf(m.mustConfigure(modeFile))); diff != "" {
		t.Errorf("upstreams (-want +got):\n%s", diff)
	}
}

func TestANamespaceWithoutAFileOfItsOwnLeavesTheMachinesAlone(t *testing.T) {
	m := newMachine(t)
	m.env.foreign = func() bool { return true }
	m.write(resolvConfPath, "nameserver 192.0.2.1\n")
	before := m.tree()
	if _, err := m.configure(); !errors.Is(err, ErrSharedResolver) {
		t.Errorf("got %v, want ErrSharedResolver", err)
	}
	if diff := cmp.Diff(before, m.tree()); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}

func TestADamagedRecordIsReportedAndNothingIsTouched(t *testing.T) {
	for _, text := range []string{"{", `{"mode":"resolv.conf"}`, `{"mode":"magic"}`} {
		m := newMachine(t)
		m.write(resolvConfPath, "nameserver 192.0.2.1\n")
		m.must(os.WriteFile(filepath.Join(m.state, resolverState), []byte(text), 0o600))
		before := m.tree()
		if err := repairResolver(m.env, m.state); err == nil {
			t.Errorf("%s is accepted", text)
		}
		if diff := cmp.Diff(before, m.tree()); diff != "" {
			t.Errorf("%s: changed (-before +after):\n%s", text, diff)
		}
	}
}

func TestNothingButNamesAndAddressesGetsIntoTheConfiguration(t *testing.T) {
	for _, change := range []func(*ResolverConfig){
		func(c *ResolverConfig) { c.Server = netip.Addr{} },
		func(c *ResolverConfig) { c.Server = netip.IPv4Unspecified() },
		func(c *ResolverConfig) { c.Interface = "" },
		func(c *ResolverConfig) { c.Interface = "a b" },
		func(c *ResolverConfig) { c.Domains = nil },
		func(c *ResolverConfig) { c.Domains = []string{"weft.internal\nnameserver 203.0.113.1"} },
		func(c *ResolverConfig) { c.Domains = []string{"~weft.internal"} },
	} {
		m := newMachine(t)
		cfg := testResolverConfig(m.state)
		change(&cfg)
		if _, err := configureResolver(t.Context(), m.env, cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
		if names := namesIn(t, m.path("/etc")); names != "" {
			t.Errorf("%+v: wrote %s", cfg, names)
		}
	}
}
