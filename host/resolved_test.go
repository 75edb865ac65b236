//go:build linux

package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

// startBus runs a D-Bus daemon of the test's own and returns how to connect to it.
func startBus(t *testing.T) func(context.Context) (*dbus.Conn, error) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("needs the program dbus-daemon")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "bus.conf")
	err = os.WriteFile(config, fmt.Appendf(nil, `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path=%s/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>`, dir), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config-file="+config, "--nofork", "--print-address=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should the test be killed
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("dbus-daemon: %s", stderr.String())
		}
	})
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("dbus-daemon does not come up: %v", err)
	}
	return func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.Connect(strings.TrimSpace(address), dbus.WithContext(ctx))
	}
}

// fakeResolved answers as systemd-resolved does and notes what it is asked.
type fakeResolved struct {
	mu    sync.Mutex
	calls []string
	fail  map[string]string // method -> name of the D-Bus error
}

func (f *fakeResolved) note(method string, args []any) *dbus.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, method+fmt.Sprint(args))
	if name := f.fail[method]; name != "" {
		return dbus.NewError(name, []any{"as the test wants it"})
	}
	return nil
}

// refuse makes a method fail with a D-Bus error, "" for no more.
func (f *fakeResolved) refuse(method, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[method] = name
}

// taken returns what was asked since the last time.
func (f *fakeResolved) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fakeResolved) SetLinkDNS(index int32, servers []resolvedServer) *dbus.Error {
	return f.note("SetLinkDNS", []any{index, servers})
}

func (f *fakeResolved) SetLinkDomains(index int32, domains []resolvedDomain) *dbus.Error {
	return f.note("SetLinkDomains", []any{index, domains})
}

func (f *fakeResolved) SetLinkDefaultRoute(index int32, on bool) *dbus.Error {
	return f.note("SetLinkDefaultRoute", []any{index, on})
}

func (f *fakeResolved) SetLinkDNSSEC(index int32, mode string) *dbus.Error {
	return f.note("SetLinkDNSSEC", []any{index, mode})
}

func (f *fakeResolved) SetLinkDNSOverTLS(index int32, mode string) *dbus.Error {
	return f.note("SetLinkDNSOverTLS", []any{index, mode})
}

func (f *fakeResolved) RevertLink(index int32) *dbus.Error { return f.note("RevertLink", []any{index}) }

// resolvedMachine is a machine with a resolved whose stub resolv.conf leads to.
func resolvedMachine(t *testing.T) (*machine, *fakeResolved) {
	t.Helper()
	m := newMachine(t)
	m.env.bus = startBus(t)
	conn, err := m.env.bus(context.Background())
	m.must(err)
	t.Cleanup(func() { conn.Close() })
	f := &fakeResolved{fail: make(map[string]string)}
	m.must(conn.Export(f, resolvedObject, resolvedName+".Manager"))
	reply, err := conn.RequestName(resolvedName, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("play systemd-resolved: %v, %v", reply, err)
	}
	m.write(resolvedStub, "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n")
	m.write(resolvedUplinks, "nameserver 192.0.2.1\n")
	m.link("../run/systemd/resolve/stub-resolv.conf", resolvConfPath)
	return m, f
}

var wiredCalls = []string{
	"SetLinkDefaultRoute[42 false]",
	"SetLinkDomains[42 [{weft.internal false}]]",
	"SetLinkDNSSEC[42 no]",
	"SetLinkDNSOverTLS[42 no]",
	"SetLinkDNS[42 [{2 [100 64 0 7]}]]",
}

func TestResolvedRoutesOnlyOurDomainToUsAndForgetsIt(t *testing.T) {
	m, f := resolvedMachine(t)
	before := m.tree()
	r := m.mustConfigure(modeResolved)
	if diff := cmp.Diff(wiredCalls, f.taken()); diff != "" {
		t.Errorf("asked of resolved (-want +got):\n%s", diff)
	}
	if got := r.Upstreams(); len(got) != 0 {
		t.Errorf("resolved asks us for nothing else, yet there are upstreams: %v", got)
	}
	m.must(r.Refresh(t.Context()))
	if diff := cmp.Diff(wiredCalls, f.taken()); diff != "" {
		t.Errorf("asked of resolved for a refresh (-want +got):\n%s", diff)
	}
	m.must(r.Close())
	if diff := cmp.Diff([]string{"RevertLink[42]"}, f.taken()); diff != "" {
		t.Errorf("asked of resolved at the end (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, m.tree()); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

func TestAnIPv6ServerIsHandedToResolvedAsOne(t *testing.T) {
	if got := serverOf(netip.MustParseAddr("fd7a::7")); got.Family != 10 || len(got.Address) != 16 {
		t.Errorf("got %+v", got)
	}
	if got := serverOf(netip.MustParseAddr("::ffff:100.64.0.7")); got.Family != 2 || len(got.Address) != 4 {
		t.Errorf("got %+v", got)
	}
}

func TestARepairForgetsTheLinkInResolvedIfItIsStillThere(t *testing.T) {
	m, f := resolvedMachine(t)
	m.mustConfigure(modeResolved)
	f.taken()
	m.repair()
	if diff := cmp.Diff([]string{"RevertLink[42]"}, f.taken()); diff != "" {
		t.Errorf("asked of resolved (-want +got):\n%s", diff)
	}

	m.mustConfigure(modeResolved)
	f.taken()
	m.env.linkIndex = func(string) (int, bool, error) { return 0, false, nil }
	m.repair()
	if got := f.taken(); got != nil {
		t.Errorf("the link is gone, and yet resolved was asked %v", got)
	}

	m.env.linkIndex = func(string) (int, bool, error) { return 42, true, nil }
	m.mustConfigure(modeResolved)
	f.refuse("RevertLink", resolvedNoLink)
	m.repair()
	m.mustConfigure(modeResolved)
	f.refuse("RevertLink", "org.freedesktop.DBus.Error.AccessDenied")
	if err := repairResolver(m.env, m.state); err == nil {
		t.Error("resolved refused to forget, and nobody was told")
	}
	f.refuse("RevertLink", "")
	m.repair()
	if names := namesIn(t, m.state); names != "" {
		t.Errorf("the state directory holds %q", names)
	}
}

func TestAnOldResolvedWithoutTheNewMethodsWillDo(t *testing.T) {
	m, f := resolvedMachine(t)
	for _, method := range []string{"SetLinkDefaultRoute", "SetLinkDNSOverTLS"} {
		f.refuse(method, dbusUnknownMethod)
	}
	m.mustConfigure(modeResolved)
}

func TestWhenResolvedRefusesTheFileIsTakenOverAndItsServersAreAsked(t *testing.T) {
	for _, tc := range []struct {
		name   string
		refuse func(*machine, *fakeResolved)
		want   []string
	}{
		{"a link of somebody else's", func(_ *machine, f *fakeResolved) {
			f.refuse("SetLinkDNS", resolvedName+".LinkBusy")
		}, append(append([]string(nil), wiredCalls...), "RevertLink[42]")},
		{"no bus", func(m *machine, _ *fakeResolved) {
			m.env.bus = func(context.Context) (*dbus.Conn, error) { return nil, errors.New("no bus") }
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, f := resolvedMachine(t)
			before := m.tree()
			tc.refuse(m, f)
			r := m.mustConfigure(modeFile)
			if diff := cmp.Diff(tc.want, f.taken()); diff != "" {
				t.Errorf("asked of resolved (-want +got):\n%s", diff)
			}
			if !strings.Contains(m.log.String(), "took the next way") {
				t.Errorf("nobody was told: %s", m.log.String())
			}
			// Not the stub: with our file in place resolved would ask us.
			if diff := cmp.Diff([]string{"192.0.2.1:53"}, upstreamsOf(r)); diff != "" {
				t.Errorf("upstreams (-want +got):\n%s", diff)
			}
			m.must(r.Close())
			if diff := cmp.Diff(before, m.tree()); diff != "" {
				t.Errorf("after all (-before +after):\n%s", diff)
			}
		})
	}
}

func TestResolvedIsAskedOnlyWhereProgramsAskIt(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(*machine)
		want bool
	}{
		{"the stub, by link", func(m *machine) { m.link("../run/systemd/resolve/stub-resolv.conf", resolvConfPath) }, true},
		{"the stub, by absolute link", func(m *machine) { m.link(m.path(resolvedStub), resolvConfPath) }, true},
		{"the static stub", func(m *machine) { m.link("/usr/lib/systemd/resolv.conf", resolvConfPath) }, true},
		{"the stub, by address", func(m *machine) { m.write(resolvConfPath, "nameserver 127.0.0.53\n") }, true},
		{"the stub beside another", func(m *machine) { m.write(resolvConfPath, "nameserver 127.0.0.53\nnameserver 192.0.2.1\n") }, false},
		{"its list, which programs read themselves", func(m *machine) { m.link("../run/systemd/resolve/resolv.conf", resolvConfPath) }, false},
		{"its list, and the C library asks it anyway", func(m *machine) {
			m.link("../run/systemd/resolve/resolv.conf", resolvConfPath)
			m.write("/etc/nsswitch.conf", "passwd: files\nhosts:\tfiles resolve [!UNAVAIL=return] dns # resolved\n")
		}, true},
		{"its list, and the C library does not", func(m *machine) {
			m.link("../run/systemd/resolve/resolv.conf", resolvConfPath)
			m.write("/etc/nsswitch.conf", "hosts: files dns # resolve\n")
		}, false},
		{"a plain file", func(m *machine) { m.write(resolvConfPath, "nameserver 192.0.2.1\n") }, false},
		{"nothing", func(*machine) {}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.write(resolvedStub, "nameserver 127.0.0.53\n")
			m.write(resolvedUplinks, "nameserver 192.0.2.1\n")
			tc.make(m)
			conf, err := inspect(m.path(resolvConfPath))
			m.must(err)
			if got := m.env.ownedByResolved(conf); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// fakeResolvconf is a resolvconf(8) that keeps records in a directory and writes
// resolv.conf from them, ours first if it came with what puts it first.
func (m *machine) fakeResolvconf(version string) {
	m.Helper()
	program := filepath.Join(m.T.TempDir(), "resolvconf")
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >> %[1]s/calls
case "$1" in --version) echo %[2]q; exit 0;; esac
cmd=; name=
while [ $# -gt 0 ]; do
	case "$1" in
	-a|-d) cmd=$1; name=$2; shift;;
	esac
	shift
done
case "$cmd" in
-a) cat > %[1]s/record.$name;;
-d) rm %[1]s/record.$name || exit 1;;
esac
{ echo "# Generated by resolvconf"; cat %[1]s/record.* 2>/dev/null; echo "nameserver 192.0.2.1"; } > %[1]s/etc/resolv.conf
`, m.root, version)
	m.must(os.WriteFile(program, []byte(script), 0o755))
	m.env.resolvconf = func() (string, bool) { return program, true }
	m.write(resolvConfPath, "# Generated by resolvconf\nnameserver 192.0.2.1\n")
}

func TestResolvconfGetsARecordAndLosesIt(t *testing.T) {
	for _, tc := range []struct {
		version string
		want    string
	}{
		{"openresolv 3.12.0", "--version\n-a lo.weft-weft0\n-f -d lo.weft-weft0\n"},
		{"Debian resolvconf 1.91", "--version\n-a lo.weft-weft0\n-d lo.weft-weft0\n"},
	} {
		t.Run(tc.version, func(t *testing.T) {
			m := newMachine(t)
			m.fakeResolvconf(tc.version)
			before := m.tree()
			r := m.mustConfigure(modeResolvconf)
			want := "# Generated by resolvconf\nnameserver 100.64.0.7\nsearch weft.internal\nnameserver 192.0.2.1\n"
			if diff := cmp.Diff(want, m.read(resolvConfPath)); diff != "" {
				t.Errorf("resolv.conf (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"192.0.2.1:53"}, upstreamsOf(r)); diff != "" {
				t.Errorf("upstreams (-want +got):\n%s", diff)
			}
			m.must(r.Close())
			if diff := cmp.Diff(before, m.tree()); diff != "" {
				t.Errorf("after all (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(tc.want, m.read("calls")); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

func TestARepairTakesTheRecordFromResolvconf(t *testing.T) {
	m := newMachine(t)
	m.fakeResolvconf("openresolv 3.12.0")
	before := m.tree()
	m.mustConfigure(modeResolvconf)
	m.repair()
	if diff := cmp.Diff(before, m.tree()); diff != "" {
		t.Errorf("after the repair (-before +after):\n%s", diff)
	}
}

func TestAResolvconfThatIsNoneIsNotUsed(t *testing.T) {
	m := newMachine(t)
	m.fakeResolvconf("systemd 252")
	m.mustConfigure(modeFile)
	if !strings.Contains(m.log.String(), "neither openresolv nor Debian") {
		t.Errorf("nobody was told: %s", m.log.String())
	}

	m = newMachine(t)
	m.fakeResolvconf("openresolv 3.12.0")
	m.write(resolvConfPath, "# by hand, not generated by resolvconf in any way\n")
	m.write(resolvConfPath, "nameserver 192.0.2.1\n# Generated by resolvconf\n")
	m.mustConfigure(modeFile)
}
