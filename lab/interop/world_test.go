package interop

import (
	"context"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"weft/lab/guest"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// A world has an engine on a machine of its own, and others on theirs.
type world struct {
	lab    *netns.Lab
	ours   kind
	theirs map[string]kind
	number int // of the last tunnel

	keepalive time.Duration // of all tunnels
	options   []netns.HostOption
}

// noImpairment is a link that does nothing to packets.
var noImpairment vnet.LinkConfig

// newWorld makes one with these others: library, debian, kernel. The links between them are as they are told to be.
func newWorld(t *testing.T, link vnet.LinkConfig, names ...string) *world {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	needs := map[string]string{"wg": "wireguard-tools"}
	if slices.Contains(names, "debian") {
		needs["wireguard-go"] = "wireguard-go"
	}
	for program, pkg := range needs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the program %s is missing (Debian package %s): run scripts/install-deps test", program, pkg)
		}
	}
	// Not the test's context: that ends before what the test started is asked how it ended.
	l := must(netns.New(context.WithoutCancel(t.Context()), "weftinterop"))(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	options := []netns.HostOption{netns.WithIPv6()}
	if link != noImpairment {
		options = append(options, netns.WithLink(link))
	}
	w := &world{lab: l, theirs: map[string]kind{}, options: options}
	if len(names) == 0 {
		return w
	}
	w.ours = newOurs(w.host(t, "engine"))
	w.echo(t, w.ours)
	for _, name := range names {
		var k kind
		switch name {
		case "library":
			k = library{w.host(t, name)}
		case "debian":
			k = debian{w.host(t, name)}
		case "kernel":
			k = newKernel(t, l, options)
		}
		w.theirs[name] = k
		w.echo(t, k)
	}
	return w
}

func (w *world) host(t *testing.T, name string) machine {
	t.Helper()
	return machine{must(w.lab.AddHost(name, w.options...))(t)}
}

// newKernel boots a guest behind a router without NAT.
func newKernel(t *testing.T, l *netns.Lab, options []netns.HostOption) kernel {
	t.Helper()
	r := must(l.AddRouter("router", netns.None, options...))(t)
	k := kernel{}
	for _, p := range []netip.Prefix{r.Inside().Prefix(), r.Inside().Prefix6()} {
		third := p.Masked().Addr().Next().Next().Next()
		k.prefixes = append(k.prefixes, netip.PrefixFrom(third, p.Bits()))
	}
	k.Guest = must(guest.Boot(t.Context(), l, guest.Config{
		Router: r, Addrs: k.prefixes, Agent: []string{self(), "interop-agent"}, Modules: []string{"wireguard"},
	}))(t)
	return k
}

// echo runs an echo for what comes through tunnels, as long as the test.
func (w *world) echo(t *testing.T, k kind) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := k.run(ctx, "interop-echo", nil); ctx.Err() == nil {
			t.Errorf("the echo ended: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// A meeting is a tunnel with both its sides.
type meeting struct {
	name         string
	weBegin, six bool
	ours, theirs tunnel
	peer         kind
}

// meet opens a tunnel between the engine and another. Only who begins knows where the other is.
func (w *world) meet(t *testing.T, name string, weBegin, six, psk bool) *meeting {
	t.Helper()
	w.number++
	x := &meeting{name: name, weBegin: weBegin, six: six, peer: w.theirs[name]}
	x.ours, x.theirs = newPair(t, w.number, psk)
	x.ours.Keepalive, x.theirs.Keepalive = w.keepalive, w.keepalive
	if weBegin {
		x.ours.Endpoint = netip.AddrPortFrom(x.peer.addr(six), x.theirs.Port)
	} else {
		x.theirs.Endpoint = netip.AddrPortFrom(w.ours.addr(six), x.ours.Port)
	}
	w.ours.open(t, x.ours)
	x.peer.open(t, x.theirs)
	return x
}

// addrs are those of a side within the tunnel.
func (n tunnel) addrs() (list []netip.Addr) {
	for _, a := range n.Addrs {
		list = append(list, a.Addr())
	}
	return list
}
