package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft"
	"weft/lab/router"
	"weft/lab/vnet"
)

// insideTap is the router's own port in the bridge of the network behind it.
const insideTap = "gate"

// WithPool gives a router of [Network.AddNATRouter] this many public addresses.
func WithPool(n int) HostOption { return func(c *hostConfig) { c.pool = n } }

// WithHops lets the way outside of a router of [Network.AddNATRouter] count for this many routers in a packet's time
// to live, in each direction: a laboratory has no internet in the middle.
func WithHops(n uint8) HostOption { return func(c *hostConfig) { c.hops = n } }

// Alone makes a host the only one behind its router of [Network.AddNATRouter]: the router's inner device is the host's interface,
// with no switch and no cable between them. A packet costs the kernel less so, in each direction.
func Alone() HostOption { return func(c *hostConfig) { c.alone = true } }

// userspace is the part of a Router whose NAT is the laboratory's own.
type userspace struct {
	bay    *patchbay
	engine *router.Router
	public []netip.Addr
	gate   int   // descriptor of its inner device
	alone  *Host // who has that; nil: it is a port of the bridge
}

// LeadInto gives a host one more interface of this name, which is the router's inner device (see [Alone]). The network behind the
// router must be empty, and stays so; addresses and routes are the caller's to give.
func (r *Router) LeadInto(h *Host, name string) error {
	r.inside.mu.Lock()
	defer r.inside.mu.Unlock()
	err := errors.New("there are hosts behind it")
	if len(r.inside.hosts) == 0 {
		err = r.inside.handOver(h, name)
	}
	if err != nil {
		return fmt.Errorf("leading %s into %s: %w", r.Name, h.Name, err)
	}
	return nil
}

// handOver moves the inner device of the network's router into a host. The caller holds the network's lock.
func (n *Network) handOver(h *Host, name string) error {
	if n.router == nil || n.router.user == nil {
		return errors.New("only a router of AddNATRouter has a device that a host can have")
	}
	u := n.router.user
	if u.alone != nil {
		return fmt.Errorf("%s has it already", u.alone.Name)
	}
	u.alone = h
	return batch(n.gateway, "link set "+insideTap+" nomaster addrgenmode none netns "+h.namespace+" name "+name)
}

// carrier plugs the cable into the inner device, or pulls it out.
func (u *userspace) carrier(up bool) (err error) {
	return errors.Join(u.bay.do(func() { err = carrierTAP(u.gate, up) }), err)
}

// AddNATRouter adds a router whose NAT is the laboratory's own, lab/router, and does what the kernel's cannot: every
// behaviour of vnet.NATConfig, and a way outside that is slow or loses packets ([WithLink]). Public of the config is
// filled in: with the router's address, and further ones if it is made [WithPool].
//
// Nothing runs in its namespace, which holds the bridge of the network behind it and no address.
func (l *Lab) AddNATRouter(name string, nat vnet.NATConfig, options ...HostOption) (*Router, error) {
	return l.public.AddNATRouter(name, nat, options...)
}

// AddNATRouter adds such a router to a network, with an empty network behind it.
func (n *Network) AddNATRouter(name string, nat vnet.NATConfig, options ...HostOption) (*Router, error) {
	var config hostConfig
	for _, o := range options {
		o(&config)
	}
	r, err := n.addNATRouter(name, nat, config)
	if err != nil {
		return nil, fmt.Errorf("adding the router %s: %w", name, err)
	}
	return r, nil
}

func (n *Network) addNATRouter(name string, nat vnet.NATConfig, config hostConfig) (*Router, error) {
	if config.v6 && !n.prefix6.IsValid() {
		return nil, fmt.Errorf("the network %v has no IPv6: make its router with it", n.prefix4)
	}
	bay, err := n.lab.bay()
	if err != nil {
		return nil, err
	}
	namespace, err := n.lab.namespace(name)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	number, addrs, err := n.reserve(config)
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	host := &Host{Name: name, lab: n.lab, namespace: namespace, on: n, addr4: addrs[0], peer: fmt.Sprintf("port%d", number)}
	r := &Router{Host: host, nat: None, user: &userspace{bay: bay}}
	if nat.Mapping != weft.NoNAT {
		nat.Public, r.nat = addrs, translated
	}
	inside := &Network{lab: n.lab, gateway: namespace, router: r}
	if inside.prefix4, inside.prefix6, err = n.lab.prefixes(r.nat, config.v6); err != nil {
		return nil, err
	}
	r.inside = inside
	c := router.Config{Name: name, NAT: nat, Hops: config.hops, Seed: seedOf(host.addr4), Gateway4: n.Gateway(),
		Inside:  router.Interface{MAC: macOf(0x67, inside.Gateway()), Prefix4: within(inside.prefix4, inside.Gateway())},
		Outside: router.Interface{MAC: macOf(0x77, host.addr4), Prefix4: within(n.prefix4, host.addr4)}}
	if config.v6 {
		host.addr6 = nth(n.prefix6, number)
		c.Gateway6 = nth(n.prefix6, 1)
		c.Inside.Prefix6 = within(inside.prefix6, nth(inside.prefix6, 1))
		c.Outside.Prefix6 = within(n.prefix6, host.addr6)
	}
	if config.link != nil {
		c.Link, c.LinkIn = config.link[0], &config.link[1]
	}
	return r, r.run(c)
}

// translated marks a router that translates by the laboratory's NAT; it is no kind that the kernel knows.
const translated NAT = "userspace"

// macOf makes a locally administered address out of a kind and an IPv4 address. It need be unique on a segment only.
func macOf(kind byte, a netip.Addr) router.MAC {
	b := a.As4()
	return router.MAC{0x02, kind, b[0], b[1], b[2], b[3]}
}

// run makes the router's devices and lets it run between them.
func (r *Router) run(c router.Config) (err error) {
	u := r.user
	var fds [2]int
	u.engine, err = router.New(c, func(to router.Leg, frame []byte) { writeTAP(fds[to], frame) })
	if err != nil {
		return err
	}
	u.public = c.NAT.Public
	if fds, err = taps(r.namespace, insideTap, r.on.gateway, r.peer); err != nil {
		return err
	}
	u.gate = fds[router.Inside]
	if err := u.bay.add(u.engine, fds); err != nil {
		return err
	}
	err = errors.Join(
		batch(r.namespace,
			"link add "+lanLink+" type bridge forward_delay 0",
			"link set "+lanLink+" addrgenmode none up",
			"link set "+insideTap+" addrgenmode none master "+lanLink+" up"),
		batch(r.on.gateway, "link set "+r.peer+" addrgenmode none master "+lanLink+" up"))
	if err == nil && c.NAT.Mapping == weft.NoNAT {
		err = r.on.route(r.inside.prefix4, r.addr4)
	}
	if err == nil && r.inside.prefix6.IsValid() {
		err = r.on.route(r.inside.prefix6, r.addr6)
	}
	return err
}

// Public are the addresses that hosts behind a router of [Network.AddNATRouter] have outside; none where it does not
// translate.
func (r *Router) Public() []netip.Addr { return r.user.public }

// do runs f where the router runs.
func (u *userspace) do(f func(*router.Router)) error {
	return u.bay.do(func() { f(u.engine) })
}

// errKernel is the answer of a router with the kernel's NAT to what only the laboratory's can.
func (r *Router) errKernel(what string) error {
	return fmt.Errorf("%s: %s has the kernel's NAT, which cannot do that; AddNATRouter makes one that can", what, r.Name)
}

// Rebind moves every mapping to another port, in mid-flow.
func (r *Router) Rebind() error {
	if r.user == nil {
		return r.errKernel("moving mappings")
	}
	return r.user.do(func(e *router.Router) { e.Rebind(time.Now()) })
}

// SetLink changes the way outside, in both directions.
func (r *Router) SetLink(l vnet.LinkConfig) error { return r.SetLinks(l, l) }

// SetLinks changes the way outside, outwards and inwards. What waits or is under way is not lost by it.
func (r *Router) SetLinks(out, in vnet.LinkConfig) error {
	if r.user == nil {
		return r.Host.SetLinks(out, in)
	}
	var err error
	if err = errors.Join(r.user.do(func(e *router.Router) { err = e.SetLinks(out, in) }), err); err != nil {
		return fmt.Errorf("changing the link of %s: %w", r.Name, err)
	}
	return nil
}

// change changes something of the way outside.
func (u *userspace) change(r *Router, f func(*vnet.LinkConfig)) error {
	var out, in vnet.LinkConfig
	if err := u.do(func(e *router.Router) { out, in = e.Links() }); err != nil {
		return err
	}
	f(&out)
	f(&in)
	return r.SetLinks(out, in)
}

// SetCut makes a black hole of the way outside, outwards, inwards, or both: nobody is told. SetCut(false, false) mends it.
func (r *Router) SetCut(out, in bool) error {
	if r.user == nil {
		return r.Host.SetCut(out, in)
	}
	return r.user.do(func(e *router.Router) { e.SetCut(out, in) })
}

// LinkCounts are what the two directions of the way outside have done so far.
func (r *Router) LinkCounts() (out, in router.WireCounts, err error) {
	if r.user == nil {
		return r.Host.LinkCounts()
	}
	err = r.user.do(func(e *router.Router) { out, in = e.LinkCounts() })
	return out, in, err
}

// LinkCounts are those of several routers of [Network.AddNATRouter], at one moment: the way outside, outwards and inwards.
func (l *Lab) LinkCounts(routers []*Router) (list [][2]router.WireCounts, err error) {
	bay, err := l.bay()
	if err != nil {
		return nil, err
	}
	for _, r := range routers {
		if r.user == nil || r.user.bay != bay {
			return nil, r.errKernel("counting what passes")
		}
	}
	err = bay.do(func() {
		for _, r := range routers {
			out, in := r.user.engine.LinkCounts()
			list = append(list, [2]router.WireCounts{out, in})
		}
	})
	return list, err
}

// SetUp plugs the way outside in, or pulls it out.
func (r *Router) SetUp(up bool) error {
	if r.user == nil {
		return r.Host.SetUp(up)
	}
	return r.user.do(func(e *router.Router) { e.SetUp(up) })
}

// Readdress gives the router another address outside (as many as it has public ones): mappings end, and whoever
// is inside keeps the address there.
func (r *Router) Readdress() error {
	if r.user == nil || len(r.user.public) == 0 {
		return r.errKernel("changing the address outside")
	}
	r.on.mu.Lock()
	_, addrs, err := r.on.reserve(hostConfig{pool: len(r.user.public)})
	r.on.mu.Unlock()
	if err != nil {
		return fmt.Errorf("readdressing %s: %w", r.Name, err)
	}
	if err = errors.Join(r.user.do(func(e *router.Router) { err = e.Readdress(addrs) }), err); err != nil {
		return fmt.Errorf("readdressing %s: %w", r.Name, err)
	}
	r.addr4, r.user.public = addrs[0], addrs
	return nil
}

// Trace tells f of every packet that a router of [Network.AddNATRouter] judges, from now on; nil ends it. f is called
// where the router runs: it must be quick, and call nothing of the lab.
func (r *Router) Trace(f func(router.Event)) error {
	if r.user == nil {
		return r.errKernel("tracing")
	}
	return r.user.do(func(e *router.Router) { e.SetTrace(f) })
}

// Counts says how many packets a router of [Network.AddNATRouter] has judged, by verdict.
func (r *Router) Counts() (counts map[string]uint64, err error) {
	if r.user == nil {
		return nil, r.errKernel("counting packets")
	}
	err = r.user.do(func(e *router.Router) { counts = e.Counts() })
	return counts, err
}
