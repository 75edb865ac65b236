package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/lab/netns"
	"weft/node"
)

// resolvedScript gives a host the real systemd-resolved behind a D-Bus of its own, with a name server that eth0's lease names, and then weft. It
// runs with mounts and processes of its own, of which it is the first: /etc and /run are not the machine's.
const resolvedScript = `set -e
mkdir "$DIR/etc"; cp -a /etc/. "$DIR/etc/"; mount --bind "$DIR/etc" /etc
mount -t tmpfs tmpfs /run; mkdir -p /run/dbus /run/systemd/resolve /etc/dbus-1/system.d
grep -q ^systemd-resolve: /etc/passwd || echo 'systemd-resolve:x:981:981::/:/usr/sbin/nologin' >>/etc/passwd
grep -q ^systemd-resolve: /etc/group || echo 'systemd-resolve:x:981:' >>/etc/group
chown systemd-resolve:systemd-resolve /run/systemd/resolve
cp "$ROOT/usr/share/dbus-1/system.d/org.freedesktop.resolve1.conf" /etc/dbus-1/system.d/
ln -sf /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf
export DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/dbus/system_bus_socket
dbus-daemon --system --nofork --nopidfile & 
"$ROOT/lib/systemd/systemd-resolved" &
for i in $(seq 200); do "$ROOT/usr/bin/resolvectl" dns eth0 "$LEASED" 2>/dev/null && break; sleep 0.1; done
"$ROOT/usr/bin/resolvectl" default-route eth0 true
exec "$@"
`

// TestWithSystemdResolvedNamesAreAskedOfWhoeverAnswersForThem needs the program, which no machine should get for the sake of a test: its
// package takes over resolv.conf. WEFT_RESOLVED names a directory in which the package was unpacked.
func TestWithSystemdResolvedNamesAreAskedOfWhoeverAnswersForThem(t *testing.T) {
	root := os.Getenv("WEFT_RESOLVED")
	for _, need := range []string{root + "/lib/systemd/systemd-resolved", root + "/usr/bin/resolvectl", "/usr/bin/dbus-daemon", "/usr/bin/nsenter"} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("needs systemd-resolved (unpack Debian's package with dpkg -x, and name the directory in WEFT_RESOLVED): %v", err)
		}
	}
	w := newWorld(t)
	exitHost, webHost, ispHost, corpHost := w.must(w.net.AddHost("exit")), w.must(w.net.AddHost("web")), w.must(w.net.AddHost("isp")), w.must(w.net.AddHost("corp"))
	gw, roadHost := w.home("road", netns.PortRestrictedCone)
	lan := gw.Inside().Gateway()
	isp, router := w.knowsAll(ispHost, ispHost.Addr(), webHost.Addr()), w.knowsAll(gw.Host, lan, webHost.Addr())
	corp := w.knowsAll(corpHost, corpHost.Addr(), corpHost.Addr())
	if err := exitHost.SetResolvConf(fmt.Sprintf("nameserver %s\n", ispHost.Addr())); err != nil {
		t.Fatal(err)
	}
	if _, err := w.server.Admin(w.ctx, "dns", "set", "split.corp.example="+corpHost.Addr().String(), "search=corp.example"); err != nil {
		t.Fatal(err)
	}
	exit := w.node(exitHost)
	exitOverlay := w.overlay(exit, 0)

	dir := t.TempDir()
	road := &Node{Name: "road", Host: roadHost, State: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "sock"), fleet: w.fleet}
	road.Client = node.NewClient(road.Socket)
	cmd := roadHost.Command(w.ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", resolvedScript, "bash",
		w.fleet.Binary, "node", "--state", road.State, "--socket", road.Socket, "--name", "road")
	cmd.Env = append(cmd.Environ(), "WEFT_TOKEN="+w.token, "DIR="+dir, "ROOT="+root, "LEASED="+lan.String())
	var err error
	if road.Process, err = roadHost.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { road.Process.Kill() }) // unshare does not heed SIGTERM, and takes with it whom it started
	w.up(road)
	w.waits("systemd-resolved to be told", func() error {
		s, err := road.Status(w.ctx)
		if err == nil && s.Self.DNS != "systemd-resolved" {
			err = fmt.Errorf("names are wired in by %q", s.Self.DNS)
		}
		return err
	})
	out, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", road.Process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	inside := strings.TrimSpace(string(out))
	tap := w.taps(gw.Host, "lan")

	finds := func(when, name string, addr netip.Addr) {
		t.Helper()
		w.waits(when+": "+name, func() error {
			got, err := roadHost.Run(w.ctx, "nsenter", "--target", inside, "--mount", "getent", "ahostsv4", name)
			if err == nil && !strings.HasPrefix(got, addr.String()) {
				err = fmt.Errorf("it is %q, want %s", got, addr)
			}
			return err
		})
	}
	asks := func(when, name string, of *oracle, by, addr netip.Addr) {
		t.Helper()
		finds(when, name, addr)
		if got, ok := of.askedBy(name); !ok || got != by {
			t.Errorf("%s: %s was asked by %v, want %v", when, name, got, by)
		}
	}
	own := func(when string) {
		t.Helper()
		finds(when, "exit.weft.internal", exitOverlay)
		finds(when, "exit", exitOverlay)
		for _, o := range []*oracle{isp, router, corp} {
			if by, ok := o.askedBy("exit.weft.internal"); ok {
				t.Errorf("%s: a name of the overlay was asked by %s", when, by)
			}
		}
	}
	own("without an exit")
	asks("without an exit", "www1.example.org", router, roadHost.Addr(), webHost.Addr())
	asks("without an exit", "host1.corp.example", corp, gw.Addr(), corpHost.Addr())
	finds("without an exit", "host1", corpHost.Addr())
	if _, ok := router.askedBy("host1.corp.example"); ok {
		t.Error("the router was asked for a name of the split domain")
	}

	w.set(exit, "advertise-exit-node=on")
	w.approve("exit", "exit")
	w.waits("the exit node to be one", func() error {
		_, err := roadHost.Run(w.ctx, w.fleet.Binary, "--socket", road.Socket, "set", "exit-node=exit")
		return err
	})
	finds("at first with an exit", "www2.example.org", webHost.Addr())
	tap.heard()
	own("with an exit")
	asks("with an exit", "www3.example.org", isp, exitHost.Addr(), webHost.Addr())
	asks("with an exit", "host3.corp.example", corp, exitHost.Addr(), corpHost.Addr())
	if questions, packets := tap.heard(); len(questions) > 0 || packets == 0 {
		t.Errorf("with an exit the LAN heard %s, of %d packets", questions, packets)
	}
	w.set(road, "exit-node=off")
	asks("without an exit again", "www4.example.org", router, roadHost.Addr(), webHost.Addr())
	own("without an exit again")
	w.run(roadHost, w.fleet.Binary, "--socket", road.Socket, "down")
	finds("when weft is down", "www5.example.org", webHost.Addr())
	if got, err := roadHost.Run(w.ctx, "nsenter", "--target", inside, "--mount", "getent", "ahostsv4", "exit.weft.internal"); err == nil && strings.Contains(got, exitOverlay.String()) {
		t.Errorf("when weft is down, a name of the overlay is found: %s", got)
	}
}
