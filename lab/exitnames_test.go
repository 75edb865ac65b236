package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"weft/lab/netns"
)

// Whom a machine asks for names when it leaves through another. The programs are those of every machine: the C library's
// resolver, as getent has it.

// An oracle is a name server that knows every name, and notes who asked for which.
type oracle struct {
	mu    sync.Mutex
	asked map[string]netip.Addr // by name
}

// knowsAll makes a host a name server on one of its addresses. All names have the address that is given.
func (w *world) knowsAll(h *netns.Host, at, all netip.Addr) *oracle {
	w.t.Helper()
	o := &oracle{asked: map[string]netip.Addr{}}
	conn, err := h.ListenUDP(netip.AddrPortFrom(at, 53))
	if err != nil {
		w.t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(out dns.ResponseWriter, q *dns.Msg) {
		name := q.Question[0].Name
		from, _ := netip.ParseAddrPort(out.RemoteAddr().String())
		o.mu.Lock()
		o.asked[strings.TrimSuffix(name, ".")] = from.Addr().Unmap()
		o.mu.Unlock()
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IP(all.AsSlice())}}
		}
		out.WriteMsg(m)
	})}
	go srv.ActivateAndServe()
	w.t.Cleanup(func() { srv.Shutdown() })
	return o
}

// askedBy is who asked for a name, if anybody did.
func (o *oracle) askedBy(name string) (netip.Addr, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a, ok := o.asked[name]
	return a, ok
}

// A wiretap hears all that comes in by an interface, and keeps what is a question for a name in clear.
type wiretap struct {
	world     *world
	mu        sync.Mutex
	idle      int // how often there was nothing to read
	packets   int
	questions []string
}

// wiretapPause is how long nothing comes for nothing to be waiting to be read.
const wiretapPause = 10 * time.Millisecond

// taps listens at an interface of a host.
func (w *world) taps(h *netns.Host, device string) *wiretap {
	w.t.Helper()
	p, err := h.OpenPackets(device)
	if err != nil {
		w.t.Fatal(err)
	}
	tap := &wiretap{world: w}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<17)
		for {
			n, err := p.Read(buf, time.Now().Add(wiretapPause))
			switch {
			case err == nil:
				tap.hear(buf[:n])
			case errors.Is(err, os.ErrDeadlineExceeded):
				tap.mu.Lock()
				tap.idle++
				tap.mu.Unlock()
			default:
				return
			}
		}
	}()
	w.t.Cleanup(func() { p.Close(); <-done })
	return tap
}

// hear takes a packet behind its virtio-net and Ethernet headers.
func (tap *wiretap) hear(b []byte) {
	if len(b) < 10+14+20 {
		return
	}
	b = b[10+14:]
	tap.mu.Lock()
	defer tap.mu.Unlock()
	tap.packets++
	next, header := b[9], int(b[0]&15)*4
	if b[0]>>4 == 6 {
		next, header = b[6], 40
	}
	if next != 6 && next != 17 || len(b) < header+20 {
		return
	}
	if port := binary.BigEndian.Uint16(b[header+2:]); port == 53 || port == 853 || port == 5353 || port == 5355 {
		tap.questions = append(tap.questions, fmt.Sprintf("port %d: %q", port, b[header+8:]))
	}
}

// heard is what was asked in clear from the last call to this one, and how many packets came by.
func (tap *wiretap) heard() (questions []string, packets int) {
	idle := func() int {
		tap.mu.Lock()
		defer tap.mu.Unlock()
		return tap.idle
	}
	before := idle()
	tap.world.waits("all packets to be heard", func() error {
		if idle() < before+2 { // the first may have begun before the last packet came
			return errors.New("there are more")
		}
		return nil
	})
	tap.mu.Lock()
	defer tap.mu.Unlock()
	questions, packets = tap.questions, tap.packets
	tap.questions, tap.packets = nil, 0
	return questions, packets
}

// getent looks a name up as every program does.
func (w *world) getent(h *netns.Host, name string) (string, error) {
	out, err := h.Run(w.ctx, "getent", "ahostsv4", name)
	return strings.TrimSpace(out), err
}

func TestWithAnExitNodeNamesAreAskedThereAndNowhereElse(t *testing.T) {
	w := newWorld(t)
	exitHost, webHost, ispHost := w.must(w.net.AddHost("exit")), w.must(w.net.AddHost("web")), w.must(w.net.AddHost("isp"))
	gw, roadHost := w.home("road", netns.PortRestrictedCone)
	lan := gw.Inside().Gateway()
	isp, router := w.knowsAll(ispHost, ispHost.Addr(), webHost.Addr()), w.knowsAll(gw.Host, lan, webHost.Addr())
	// Router advertisements name a router as the name server by its link-local address (RFC 8106).
	nearby := netip.MustParseAddr("fe80::53")
	w.run(gw.Host, "ip", "addr", "add", nearby.String()+"/64", "dev", "lan", "nodad")
	w.run(roadHost, "ip", "addr", "add", "fe80::20/64", "dev", "eth0", "nodad")
	near := w.knowsAll(gw.Host, nearby.WithZone("lan"), webHost.Addr())
	found := fmt.Sprintf("nameserver %s\nnameserver %s%%eth0\noptions timeout:1 attempts:1\n", lan, nearby)
	if err := roadHost.SetResolvConf(found); err != nil {
		t.Fatal(err)
	}
	if err := exitHost.SetResolvConf(fmt.Sprintf("nameserver %s\n", ispHost.Addr())); err != nil {
		t.Fatal(err)
	}
	exit, road := w.node(exitHost), w.node(roadHost)
	w.up(exit)
	exitOverlay := w.overlay(exit, 0)
	w.up(road)
	tap := w.taps(gw.Host, "lan")

	names := 0
	fresh := func() string { names++; return fmt.Sprintf("name%d.example.org", names) }
	// asked waits until a new name is found by asking one of them.
	asked := func(what string, of *oracle, from netip.Addr) {
		t.Helper()
		w.waits(what, func() error {
			name := fresh()
			out, err := w.getent(roadHost, name)
			if err == nil && !strings.HasPrefix(out, webHost.Addr().String()) {
				err = fmt.Errorf("%s is %q", name, out)
			}
			if err != nil {
				return err
			}
			if by, ok := of.askedBy(name); !ok || by != from {
				return fmt.Errorf("%s was asked by %v, want %v", name, by, from)
			}
			return nil
		})
	}
	// silent fails where something was asked in the LAN.
	silent := func(what string) {
		t.Helper()
		questions, packets := tap.heard()
		if len(questions) > 0 {
			t.Errorf("%s: the LAN heard %d questions, the first %s", what, len(questions), questions[0])
		}
		if packets == 0 {
			t.Errorf("%s: the LAN heard nothing at all: that is no ear", what)
		}
	}
	// none fails where a name is found, or somebody hears of it.
	none := func(what string) {
		t.Helper()
		name := fresh()
		if out, err := w.getent(roadHost, name); err == nil {
			t.Errorf("%s: %s was found: %s", what, name, out)
		}
		for who, o := range map[string]*oracle{"the router": router, "the router's link-local address": near, "the provider": isp} {
			if by, ok := o.askedBy(name); ok {
				t.Errorf("%s: %s was asked for %s by %s", what, who, name, by)
			}
		}
	}

	asked("the LAN's router to be asked at first", router, roadHost.Addr())
	if out, err := roadHost.Run(w.ctx, "ping", "-c", "1", "-W", "5", nearby.String()+"%eth0"); err != nil {
		t.Errorf("the router's link-local address is not there: %s", out)
	}
	if questions, _ := tap.heard(); len(questions) == 0 {
		t.Error("the ear at the LAN does not hear questions")
	}
	carried := func(when string, inUse bool) {
		t.Helper()
		w.waits(when, func() error {
			doc, err := w.access(road, "road", webHost.Addr().String(), "tcp:80")
			if c := doc.Carrier; err == nil && (c.By != "exit" || !c.Approved || c.InUse != inUse || doc.DecidedBy != "exit") {
				err = fmt.Errorf("it says %+v", doc)
			}
			return err
		})
	}
	w.set(exit, "advertise-exit-node=on")
	w.approve("exit", "exit")
	carried("the exit to be named as one that would do", false)
	w.waits("the exit node to be one", func() error {
		_, err := roadHost.Run(w.ctx, w.fleet.Binary, "--socket", road.Socket, "set", "exit-node=exit")
		return err
	})
	asked("the exit's provider to be asked by the exit", isp, exitHost.Addr())
	carried("the exit to be named as who carries packets", true)
	tap.heard()
	for range 3 {
		asked("the exit's provider to be asked", isp, exitHost.Addr())
	}
	if got := w.run(roadHost, "getent", "ahostsv4", "exit.weft.internal"); !strings.Contains(got, exitOverlay.String()) {
		t.Errorf("the exit's own name is %q", got)
	}
	silent("with an exit")
	w.set(road, "exit-lan=on")
	asked("the exit's provider to be asked although the LAN is left as it is", isp, exitHost.Addr())
	tap.heard()
	asked("the exit's provider to be asked once more", isp, exitHost.Addr())
	w.run(roadHost, "ping", "-c", "1", "-W", "5", lan.String()) // it is there
	silent("with an exit, and the LAN left as it is")

	// The exit dies. The C library goes on to the next name server of its list, which is the LAN's.
	if err := exit.Process.Kill(); err != nil {
		t.Log(err)
	}
	none("the exit is dead, and the LAN left as it is")
	w.run(roadHost, "ping", "-c", "1", "-W", "5", lan.String())
	silent("the exit is dead, and the LAN left as it is")
	w.set(road, "exit-lan=off")
	none("the exit is dead")
	if err := exit.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	w.up(exit)
	asked("the exit's provider to be asked again", isp, exitHost.Addr())

	// The daemon dies; nobody is asked. It starts; the exit is.
	tap.heard()
	if err := road.Process.Kill(); err != nil {
		t.Log(err)
	}
	none("the daemon is dead")
	if questions, _ := tap.heard(); len(questions) > 0 {
		t.Errorf("the daemon is dead: the LAN heard %s", questions)
	}
	if err := road.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	w.up(road)
	asked("the exit's provider to be asked after the start", isp, exitHost.Addr())

	w.set(road, "exit-node=off")
	asked("the LAN's router to be asked without an exit", router, roadHost.Addr())
	if got := w.run(roadHost, "getent", "ahostsv4", "exit.weft.internal"); !strings.Contains(got, exitOverlay.String()) {
		t.Errorf("without an exit the exit's own name is %q", got)
	}

	// Killed with an exit in force, and taken down: all is as it was found.
	w.set(road, "exit-node=exit")
	asked("the exit's provider to be asked when it is told again", isp, exitHost.Addr())
	if err := road.Process.Kill(); err != nil {
		t.Log(err)
	}
	said := w.run(roadHost, w.fleet.Binary, "down", "--socket", road.Socket, "--state", road.State)
	for _, what := range []string{"the system's resolver", "routes into the overlay", "the way past the exit node"} {
		if !strings.Contains(said, what) {
			t.Errorf("weft down does not name %s: %s", what, said)
		}
	}
	w.clean(roadHost)
	if got := w.resolvConf(roadHost); got != found {
		t.Errorf("after weft down resolv.conf is %q, and was %q", got, found)
	}
	asked("the LAN's router to be asked after weft down", router, roadHost.Addr())
	if leftovers, _ := os.ReadDir(road.State); slices.ContainsFunc(leftovers, func(e os.DirEntry) bool { return e.Name() == "resolver.json" }) {
		t.Error("the record of the resolver is still there")
	}
}
