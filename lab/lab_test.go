package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
)

// The tests of this package are L3: namespaces, the real binary, real TUN devices, real programs. Those that wait for long,
// and whose bounds are wide, run beside each other; the others measure time, or name interfaces by this process.

// patience bounds whatever a test waits for: far more than it should take on a machine that does other things.
const patience = 60 * time.Second

var weftBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WEFT_BINARY"); path != "" {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	dir, err := os.MkdirTemp("", "weft-binary-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "weft")
	out, err := exec.Command("go", "build", "-o", path, "weft/cmd/weft").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := weftBinary(); err == nil && strings.Contains(path, "weft-binary-") {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// A world is a laid-out network with a server in it.
type world struct {
	t      testing.TB
	ctx    context.Context
	net    *netns.Lab
	fleet  Fleet
	server *Server
	token  string
}

// newWorld is a network with a server in it.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := newNet(t)
	w.serve()
	return w
}

// newNet is an empty network.
func newNet(t testing.TB) *world {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("network namespaces cannot be used here: %v", err)
	}
	path, err := weftBinary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	t.Cleanup(cancel)
	logs := t.TempDir()
	l, err := netns.New(ctx, "wtest", netns.KeepLogs(logs))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			showLogs(t, logs)
		}
	})
	return &world{t: t, ctx: ctx, net: l, fleet: Fleet{Binary: path, Dir: l.Dir()}}
}

// serve starts the server and makes a token for the nodes.
func (w *world) serve(flags ...string) {
	w.t.Helper()
	srv := w.must(w.net.AddHost("srv"))
	var err error
	if w.server, err = w.fleet.StartServer(w.ctx, srv, flags...); err != nil {
		w.t.Fatal(err)
	}
	if w.token, err = w.server.Token(w.ctx, "--reusable"); err != nil {
		w.t.Fatal(err)
	}
}

func showLogs(t testing.TB, dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		const most = 60 // lines
		t.Logf("--- %s\n%s", filepath.Base(f), netns.LastWords(string(b), most))
	}
}

func (w *world) must(h *netns.Host, err error) *netns.Host {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

// home is a host behind a router of its own.
func (w *world) home(name string, nat netns.NAT) (*netns.Router, *netns.Host) {
	w.t.Helper()
	r, err := w.net.AddRouter("gw-"+name, nat)
	if err != nil {
		w.t.Fatal(err)
	}
	return r, w.must(r.AddHost(name))
}

func (w *world) node(h *netns.Host, flags ...string) *Node {
	w.t.Helper()
	n, err := w.fleet.StartNode(w.ctx, h, h.Name, w.token, flags...)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) up(n *Node) weft.Status {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	s, err := n.Up(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) reaches(n *Node, peer string, methods ...weft.Method) weft.PeerStatus {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	p, err := n.Reaches(ctx, peer, methods...)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// homes are two nodes behind port-restricted cones, both up.
func (w *world) homes() (gwA, gwB *netns.Router, a, b *Node, addrA, addrB netip.Addr) {
	w.t.Helper()
	gwA, hostA := w.home("ann", netns.PortRestrictedCone)
	gwB, hostB := w.home("bob", netns.PortRestrictedCone)
	a, b = w.node(hostA), w.node(hostB)
	addrA, addrB = w.up(a).Self.Addrs[0], w.up(b).Self.Addrs[0]
	return gwA, gwB, a, b, addrA, addrB
}

func (w *world) run(h *netns.Host, name string, args ...string) string {
	w.t.Helper()
	out, err := h.Run(w.ctx, name, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestTwoHomesBehindPortRestrictedConesBecomeDirect(t *testing.T) {
	w := newWorld(t)
	_, _, a, b, _, addrB := w.homes()
	w.run(a.Host, "ping", "-c", "3", "-i", "0.2", "-W", "5", addrB.String())
	p := w.reaches(a, "bob", weft.Direct)
	q := w.reaches(b, "ann", weft.Direct)
	t.Logf("direct after %.0f ms and %.0f ms", p.DirectAfterMS, q.DirectAfterMS)
	if len(p.Switches) == 0 || p.Reason == "" {
		t.Errorf("the change of path has no reason: %+v", p)
	}
}

func TestTwoHomesBehindSymmetricNATsStayOnTheRelay(t *testing.T) {
	w := newWorld(t)
	_, hostA := w.home("ann", netns.Symmetric)
	_, hostB := w.home("bob", netns.Symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.run(a.Host, "ping", "-c", "20", "-i", "0.2", "-W", "5", addrB.String())
	if p := w.reaches(a, "bob", weft.RelayUDP); p.Path != weft.PathRelay {
		t.Errorf("path is %s, not through the relay", p.Path)
	}
}

func TestPeersAreFetchedByNameAndTheResolverIsPutBack(t *testing.T) {
	w := newWorld(t)
	_, hostA := w.home("ann", netns.PortRestrictedCone)
	_, hostB := w.home("bob", netns.PortRestrictedCone)
	const former = "nameserver 192.0.2.53\n"
	if err := hostA.SetResolvConf(former); err != nil {
		t.Fatal(err)
	}
	a, b := w.node(hostA), w.node(hostB)
	addrA, addrB := w.up(a).Self.Addrs[0], w.up(b).Self.Addrs[0]
	const page = "the page in bob's home\n"
	web, err := b.Host.Listen(netip.AddrPortFrom(addrB, 80))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, page) })}
	go srv.Serve(web)
	defer srv.Close()
	w.reaches(a, "bob", weft.RelayUDP, weft.RelayStream, weft.Direct) // ann has heard of bob
	if got := w.run(a.Host, "curl", "-sS", "--max-time", "20", "http://bob.weft.internal/"); got != page {
		t.Errorf("the page reads %q", got)
	}
	if got := w.run(a.Host, "getent", "hosts", addrB.String()); !strings.Contains(got, "bob.weft.internal") {
		t.Errorf("%s is looked up as %q", addrB, got)
	}
	if got := w.run(a.Host, "getent", "ahostsv4", "ann.weft.internal"); !strings.Contains(got, addrA.String()) {
		t.Errorf("ann finds itself as %q", got)
	}
	if err := a.Process.Stop(); err != nil {
		t.Error(err)
	}
	if got, err := hostA.ResolvConf(); err != nil || got != former {
		t.Errorf("after the node's end resolv.conf reads %q (%v), not %q", got, err, former)
	}
	if err := a.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	w.up(a)
	if err := a.Process.Kill(); err != nil {
		t.Log(err)
	}
	if err := a.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	w.up(a)
	if got := w.run(a.Host, "getent", "ahostsv4", "bob.weft.internal"); !strings.Contains(got, addrB.String()) {
		t.Errorf("after a kill -9 names resolve to %q", got)
	}
	if err := a.Process.Stop(); err != nil {
		t.Error(err)
	}
	if got, err := hostA.ResolvConf(); err != nil || got != former {
		t.Errorf("after a kill -9 and a second run resolv.conf reads %q (%v), not %q", got, err, former)
	}
}

// A conversation is a TCP connection on which numbered lines go out and come back, and the longest silence.
type conversation struct {
	conn    net.Conn
	mu      sync.Mutex
	echoed  int
	longest time.Duration
	err     error
	ended   chan struct{}
}

func (w *world) converse(from, to *netns.Host, addr netip.Addr) *conversation {
	w.t.Helper()
	l, err := to.Listen(netip.AddrPortFrom(addr, 7))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(c, c)
		}
	}()
	conn, err := from.DialContext(w.ctx, "tcp", netip.AddrPortFrom(addr, 7).String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	c := &conversation{conn: conn, ended: make(chan struct{})}
	go func() {
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(conn, "%08d\n", i); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond) // the pace of the conversation, not a wait
		}
	}()
	go func() {
		defer close(c.ended)
		buf := make([]byte, 9)
		last := time.Now()
		for i := 0; ; i++ {
			_, err := io.ReadFull(conn, buf)
			c.mu.Lock()
			c.longest = max(c.longest, time.Since(last))
			last = time.Now()
			if err == nil && string(buf) != fmt.Sprintf("%08d\n", i) {
				err = fmt.Errorf("line %d came back as %q", i, buf)
			}
			if c.err = err; err == nil {
				c.echoed++
			}
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return c
}

// goesOn waits until n more lines have come back, and returns the longest silence since the last call.
func (c *conversation) goesOn(t testing.TB, n int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c.mu.Lock()
	want := c.echoed + n
	c.mu.Unlock()
	if err := netns.WaitFor(ctx, "the conversation to go on", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err != nil {
			return c.err
		}
		if c.echoed < want {
			return fmt.Errorf("%d lines of %d", c.echoed, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	longest := c.longest
	c.longest = 0
	return longest
}

func TestATCPConnectionSurvivesTheLossOfAllUDPAndReturnsToDirect(t *testing.T) {
	w := newWorld(t)
	gwA, _, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 50)

	if err := gwA.BlockUDP(); err != nil {
		t.Fatal(err)
	}
	silence := talk.goesOn(t, 100)
	w.reaches(a, "bob", weft.RelayStream)
	t.Logf("UDP cut: the longest silence was %v", silence)
	if silence > 5*time.Second {
		t.Errorf("the connection was silent for %v", silence)
	}
	if err := gwA.Unblock(); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	silence = talk.goesOn(t, 100)
	t.Logf("UDP restored: the longest silence was %v", silence)
}

func TestADirectPathThatDiesIsLeftForTheUDPRelayAndComesBack(t *testing.T) {
	w := newWorld(t)
	gwA, gwB, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 50)
	if err := gwA.BlockUDPBetween(a.Host.Addr(), gwB.Addr()); err != nil {
		t.Fatal(err)
	}
	silence := talk.goesOn(t, 100)
	w.reaches(a, "bob", weft.RelayUDP)
	t.Logf("direct path cut: the longest silence was %v", silence)
	if silence > 5*time.Second {
		t.Errorf("the connection was silent for %v", silence)
	}
	if err := gwA.Unblock(); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, "bob", weft.Direct)
	talk.goesOn(t, 50)
}

func TestTunnelsPassTrafficAndANodeComesUpWhileTheServerIsDown(t *testing.T) {
	w := newWorld(t)
	_, _, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 20)
	if err := w.server.Process.Kill(); err != nil {
		t.Log(err)
	}
	if silence := talk.goesOn(t, 200); silence > 2*time.Second {
		t.Errorf("with the server gone the connection was silent for %v", silence)
	}
	// Within one LAN, nobody is needed to find each other again: both know where the other was.
	hostC := w.must(w.net.AddHost("cid"))
	hostD := w.must(w.net.AddHost("dan"))
	if err := w.server.Start(w.ctx); err != nil {
		t.Fatal(err)
	}
	c, d := w.node(hostC), w.node(hostD)
	w.up(c)
	addrD := w.up(d).Self.Addrs[0]
	w.reaches(c, "dan", weft.Direct)
	w.reaches(d, "cid", weft.Direct)
	if err := w.server.Process.Kill(); err != nil {
		t.Log(err)
	}
	if err := c.Process.Stop(); err != nil {
		t.Error(err)
	}
	if err := c.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	s := w.up(c)
	if s.Server.Connected {
		t.Error("the node says that it is connected to a server that is dead")
	}
	w.run(hostC, "ping", "-c", "3", "-w", "20", addrD.String())
}

func TestAPacketCaptureAtTheRelayShowsNoPlaintext(t *testing.T) {
	if _, err := exec.LookPath("tcpdump"); err != nil {
		t.Skip("tcpdump is not installed")
	}
	w := newWorld(t)
	_, hostA := w.home("ann", netns.Symmetric)
	_, hostB := w.home("bob", netns.Symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.RelayUDP)

	var random [16]byte
	rand.Read(random[:])
	canary := "canary-" + hex.EncodeToString(random[:])
	file := filepath.Join(w.net.Dir(), "relay.pcap")
	dump, err := w.server.Host.Start(w.server.Host.Command(w.ctx, "tcpdump", "--immediate-mode", "-i", "any", "-U", "-s", "0", "-w", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.WaitFor(w.ctx, "tcpdump to listen", func() error {
		if !strings.Contains(dump.Log(), "listening on") {
			return errors.New("it does not yet")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l, err := b.Host.Listen(netip.AddrPortFrom(addrB, 80))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, addrB.String()) {
			io.WriteString(w, canary)
		}
	})}
	go srv.Serve(l)
	defer srv.Close()
	for range 3 {
		if got := w.run(a.Host, "curl", "-sS", "--max-time", "20", "-d", canary, "http://"+addrB.String()+"/"); got != canary {
			t.Fatalf("the answer is %q", got)
		}
	}
	// What goes to the same host outside the tunnel must be found, or finding nothing means nothing.
	control := "outside-" + canary
	plain, err := w.server.Host.Listen(netip.AddrPortFrom(w.server.Host.Addr(), 8080))
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(plain)
	w.run(a.Host, "curl", "-sS", "--max-time", "20", "-d", control, "http://"+plain.Addr().String()+"/")
	if err := dump.Stop(); err != nil {
		t.Log(err)
	}
	capture, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	relayed := strings.Count(string(capture), "\xf7\x01\x02\x00")
	if relayed < 10 {
		t.Errorf("the capture of %d bytes has %d relayed frames: it is of something else", len(capture), relayed)
	}
	if strings.Contains(strings.ReplaceAll(string(capture), control, ""), "canary-") {
		t.Error("the capture at the relay contains what was sent in the tunnel")
	}
	if !strings.Contains(string(capture), control) {
		t.Error("the capture does not contain what was sent outside the tunnel: the search finds nothing anywhere")
	}
}

func TestANodeThatIsRemovedIsGoneWithinASecond(t *testing.T) {
	w := newWorld(t)
	_, _, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	if _, err := w.server.Admin(w.ctx, "node", "remove", "bob"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.ctx, time.Second)
	defer cancel()
	if err := netns.WaitFor(ctx, "bob to be gone", func() error {
		s, err := a.Status(ctx)
		if err == nil && len(s.Peers) != 0 {
			err = fmt.Errorf("ann still has %d peers", len(s.Peers))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if out, err := a.Host.Run(w.ctx, "ping", "-c", "2", "-W", "1", addrB.String()); err == nil {
		t.Errorf("bob still answers: %s", out)
	}
	if err := netns.WaitFor(w.ctx, "bob to know", func() error {
		s, err := b.Status(w.ctx)
		if err == nil && s.State != weft.Refused {
			err = fmt.Errorf("bob is %s", s.State)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestAStandAloneRelayCarriesTrafficWhileTheServerIsDown(t *testing.T) {
	w := newWorld(t)
	host := w.must(w.net.AddHost("relay"))
	token, err := w.server.Token(w.ctx, "--relay")
	if err != nil {
		t.Fatal(err)
	}
	cmd := host.Command(w.ctx, w.fleet.Binary, "relay", "--data", filepath.Join(w.fleet.Dir, "relay"),
		"--listen", ":443", "--stun", ":3478", "--url", "https://"+host.Addr().String(), "--name", "elsewhere")
	cmd.Env = append(cmd.Environ(), "WEFT_TOKEN="+token)
	if _, err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	_, hostA := w.home("ann", netns.Symmetric)
	_, hostB := w.home("bob", netns.Symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	for _, n := range []*Node{a, b} {
		if err := netns.WaitFor(w.ctx, n.Name+" to be bound to both relays", func() error {
			s, err := n.Status(w.ctx)
			if err != nil {
				return err
			}
			up := 0
			for _, r := range s.Self.Relays {
				if r.UDP && r.Stream {
					up++
				}
			}
			if up != 2 {
				return fmt.Errorf("%d are up: %+v", up, s.Self.Relays)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 20)
	if err := w.server.Process.Kill(); err != nil {
		t.Log(err)
	}
	silence := talk.goesOn(t, 100)
	t.Logf("the server with its relay gone: the longest silence was %v", silence)
	p := w.reaches(a, "bob", weft.RelayUDP, weft.RelayStream)
	if p.Endpoint != "elsewhere" {
		t.Errorf("traffic goes through %q", p.Endpoint)
	}
}
