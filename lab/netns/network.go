package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"weft/lab/vnet"
)

// Interface names are the same in every namespace: no two of them meet.
const (
	hostLink = "eth0" // a host's leg
	wanLink  = "wan"  // a router's outside leg
	lanLink  = "lan"  // the bridge of a network, in the namespace of its gateway
)

// Network is one layer 2 segment and its addresses. The first address is the gateway's.
type Network struct {
	lab     *Lab
	gateway string       // namespace with the bridge
	router  *Router      // whose inside this is; nil for the public network
	prefix4 netip.Prefix // always there
	prefix6 netip.Prefix // zero where the network has no IPv6

	mu     sync.Mutex
	hosts  []*Host
	number int                 // the last address given, counted from the prefix's first
	taken  map[netip.Addr]bool // those that callers chose, and what is not the next in turn
	legs   []*Leg              // further legs of hosts
	lan    bool                // its gateway is a host with a leg on it
	single bool                // everybody sends packets one by one
}

// Host is a namespace with one leg on a network. Programs run in it: see [Host.Command].
type Host struct {
	// Name is the short name given by the caller.
	Name string

	lab          *Lab
	namespace    string
	link         string // its leg
	peer         string // the other end of its leg: a port of the network's bridge
	on           *Network
	addr4, addr6 netip.Addr
	cable        *cable // its leg, where that is impaired
	legs         []*Leg // those that it has besides
}

// HostOption changes how a host or router is made.
type HostOption func(*hostConfig)

type hostConfig struct {
	v6    bool
	addrs []netip.Addr
	pool  int
	hops  uint8
	first bool                // of a lan's addresses
	alone bool                // behind a router of the laboratory's own
	link  *[2]vnet.LinkConfig // on the way out, on the way in
	// Of further legs, as link:
	line   *[2]vnet.LinkConfig
	metric int
}

// WithIPv6 gives a host a global IPv6 address beside its IPv4 address, and a router a /64 of its
// own to hand out inside. IPv6 is never translated; what a router's kind filters, it filters too.
func WithIPv6() HostOption { return func(c *hostConfig) { c.v6 = true } }

// newPublic makes the public network: a bridge and the provider's routing in one namespace.
func (l *Lab) newPublic() (*Network, error) {
	gateway, err := l.namespace("public")
	if err != nil {
		return nil, err
	}
	n := &Network{lab: l, gateway: gateway, prefix4: publicPrefix4, prefix6: publicPrefix6}
	return n, n.raise()
}

// raise makes the bridge of the network in its gateway and lets the gateway forward.
func (n *Network) raise() error {
	err := enter(n.gateway, func() error {
		return errors.Join(
			sysctl("net/ipv4/ip_forward", "1"),
			sysctl("net/ipv6/conf/all/forwarding", "1"),
			// On the public network packets leave by the link they came in on; telling their
			// senders of a shorter way would let them pass the gateway by.
			sysctl("net/ipv4/conf/all/send_redirects", "0"),
			sysctl("net/ipv4/conf/default/send_redirects", "0"),
		)
	})
	if err != nil {
		return err
	}
	lines := []string{
		// A bridge without a MAC of its own has the lowest of its ports', which are random: with the next host it may be another,
		// and who knows the gateway by the last one reaches nobody through it until the kernel asks again, after half a minute.
		"link add " + lanLink + " address " + macOf(0x67, n.Gateway()).String() + " type bridge forward_delay 0",
		"addr add " + within(n.prefix4, n.Gateway()).String() + " dev " + lanLink,
		"link set " + lanLink + " up",
	}
	if n.prefix6.IsValid() {
		lines = append(lines, "addr add "+within(n.prefix6, nth(n.prefix6, 1)).String()+" dev "+lanLink+" nodad")
	}
	return batch(n.gateway, lines...)
}

// Gateway returns the IPv4 address of the gateway on this network.
func (n *Network) Gateway() netip.Addr { return nth(n.prefix4, 1) }

// Prefix returns the IPv4 prefix of the network.
func (n *Network) Prefix() netip.Prefix { return n.prefix4 }

// Prefix6 returns the IPv6 prefix of the network, the zero prefix where it has none.
func (n *Network) Prefix6() netip.Prefix { return n.prefix6 }

// AddHost adds a host to the network.
func (n *Network) AddHost(name string, options ...HostOption) (*Host, error) {
	h, err := n.attach(name, hostLink, options)
	if err != nil {
		return nil, fmt.Errorf("adding the host %s: %w", name, err)
	}
	return h, nil
}

// attach makes a namespace with a leg on the network, a default route and a resolv.conf.
func (n *Network) attach(name, link string, options []HostOption) (*Host, error) {
	var config hostConfig
	for _, o := range options {
		o(&config)
	}
	if config.pool > 1 || len(config.addrs) > 1 || config.hops > 0 || config.first {
		return nil, errors.New("several addresses and hops are for routers with a NAT of the laboratory's own, a lan's first address for a further leg")
	}
	namespace, err := n.lab.namespace(name)
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, lab: n.lab, namespace: namespace, link: link}
	if err := h.plug(n, config); err != nil {
		return nil, err
	}
	// The gateway serves no names, and says so at once (ICMP port unreachable): a program that
	// asks for a foreign name is answered no, and never waits.
	return h, h.SetResolvConf("nameserver " + n.Gateway().String() + "\n")
}

// plug gives a host its leg on a network: a veth pair, or a cable where it is to be impaired.
func (h *Host) plug(n *Network, config hostConfig) error {
	if config.v6 && !n.prefix6.IsValid() {
		return fmt.Errorf("the network %v has no IPv6: make its router with it", n.prefix4)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.router != nil && n.router.user != nil && n.router.user.alone != nil {
		return fmt.Errorf("%s has the router for itself", n.router.user.alone.Name)
	}
	number, addrs, err := n.reserve(config)
	if err != nil {
		return err
	}
	h.on, h.addr4, h.addr6, h.peer = n, addrs[0], netip.Addr{}, fmt.Sprintf("port%d", number)
	n.hosts = append(n.hosts, h)
	lines := []string{
		"link set " + h.link + " up",
		"addr add " + within(n.prefix4, h.addr4).String() + " dev " + h.link,
		"route add default via " + n.Gateway().String(),
	}
	if config.v6 {
		h.addr6 = nth(n.prefix6, number)
		lines = append(lines,
			"addr add "+within(n.prefix6, h.addr6).String()+" dev "+h.link+" nodad",
			"route add ::/0 via "+nth(n.prefix6, 1).String())
	} else {
		// Not even a link-local address: a host without IPv6 must not find one to offer.
		lines = append([]string{"link set " + h.link + " addrgenmode none"}, lines...)
	}
	switch {
	case config.link != nil && config.alone:
		err = errors.New("a host that is alone has no link of its own: give its router one")
	case config.link != nil:
		err = h.lay(config.link[0], config.link[1])
	case config.alone && len(n.hosts) > 1:
		err = errors.New("it would not be alone")
	case config.alone:
		if err = n.handOver(h, h.link); err == nil {
			return batch(h.namespace, lines...)
		}
	default:
		lines = append([]string{"link add " + h.link + " type veth peer name " + h.peer + " netns " + n.gateway}, lines...)
		if n.single {
			lines = append(lines, "link set "+h.link+" gso_max_segs 1")
		}
	}
	if err != nil {
		return err
	}
	if err := batch(h.namespace, lines...); err != nil {
		return err
	}
	return batch(n.gateway, "link set "+h.peer+" addrgenmode none master "+lanLink+" up")
}

// reserve takes addresses of the network: those that were asked for, or the next ones in turn. The number names
// the port of the network's bridge.
func (n *Network) reserve(config hostConfig) (number int, addrs []netip.Addr, err error) {
	if n.number == 0 {
		n.number, n.taken = 1, map[netip.Addr]bool{n.Gateway(): true} // the gateway's
	}
	if config.first {
		if !n.lan || n.taken[netip.Addr{}] {
			return 0, nil, fmt.Errorf("the network %v has a gateway already", n.prefix4)
		}
		n.taken[netip.Addr{}] = true // no host's: it marks that the gateway is there
		return 1, []netip.Addr{n.Gateway()}, nil
	}
	n.number++
	number = n.number
	for _, a := range config.addrs {
		last := !n.prefix4.Contains(a.Next())
		if !n.prefix4.Contains(a) || a == n.prefix4.Masked().Addr() || last {
			return 0, nil, fmt.Errorf("%v is no address of a host in %v", a, n.prefix4)
		}
		if n.taken[a] {
			return 0, nil, fmt.Errorf("the address %v is taken", a)
		}
		n.taken[a] = true
		addrs = append(addrs, a)
	}
	for next := number; len(addrs) < max(1, config.pool); next++ {
		a := nth(n.prefix4, next)
		if !n.prefix4.Contains(nth(n.prefix4, next+1)) { // the last one is the broadcast address
			return 0, nil, fmt.Errorf("the network %v is full", n.prefix4)
		}
		if !n.taken[a] {
			n.taken[a] = true
			addrs = append(addrs, a)
		}
	}
	return number, addrs, nil
}

// unplug takes a host off its network.
func (h *Host) unplug() error {
	n := h.on
	n.mu.Lock()
	n.hosts = slices.DeleteFunc(n.hosts, func(o *Host) bool { return o == h })
	n.mu.Unlock()
	if h.cable != nil {
		return h.cable.remove()
	}
	if h.isAlone() {
		return errors.New("its interface is its router's device")
	}
	return batch(h.namespace, "link del "+h.link)
}

// Move takes a host off its network and puts it on one, which may be the same: it has other addresses from now on,
// and no connection survives by itself. Impairments of its link stay.
func (h *Host) Move(to *Network) error {
	config := hostConfig{v6: h.addr6.IsValid() && to.prefix6.IsValid()}
	if h.cable != nil {
		config.link = &[2]vnet.LinkConfig{h.cable.out, h.cable.in}
	}
	err := h.unplug()
	if err == nil {
		err = h.plug(to, config)
	}
	if err != nil {
		return fmt.Errorf("moving %s: %w", h.Name, err)
	}
	return h.SetResolvConf("nameserver " + to.Gateway().String() + "\n")
}

// SetUp plugs the host's link in, or pulls it out at the network's end, as a cable that breaks somewhere does.
func (h *Host) SetUp(up bool) error {
	if h.cable != nil {
		return h.cable.setUp(up)
	}
	if h.isAlone() {
		return h.on.router.user.carrier(up)
	}
	state := " down"
	if up {
		state = " up"
	}
	return batch(h.on.gateway, "link set "+h.peer+state)
}

// isAlone reports whether the host's first interface is its router's inner device.
func (h *Host) isAlone() bool {
	return h.on.router != nil && h.on.router.user != nil && h.on.router.user.alone == h
}

// SetResolvConf replaces the /etc/resolv.conf that programs started in the host from now on see.
// The file is mounted over, as `ip netns exec` does it, so programs in the host can write to it,
// and the others in the same host see what they wrote, but they cannot rename another over it.
func (h *Host) SetResolvConf(content string) error {
	dir := filepath.Join(etcDir, h.namespace)
	// Another lab that closes takes the parent away when it looks empty: so it is made anew.
	var err error
	for range 3 {
		if err = os.MkdirAll(dir, 0o755); err == nil {
			if err = os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte(content), 0o644); err == nil {
				return nil
			}
		}
	}
	return fmt.Errorf("writing the resolv.conf of %s: %w", h.Name, err)
}

// ResolvConf returns the /etc/resolv.conf as programs in the host see it now.
func (h *Host) ResolvConf() (string, error) {
	content, err := os.ReadFile(filepath.Join(etcDir, h.namespace, "resolv.conf"))
	return string(content), err
}

// Namespace returns the full name of the namespace, as `ip netns` lists it.
func (h *Host) Namespace() string { return h.namespace }

// Addr returns the IPv4 address of the host; of a router, the one outside.
func (h *Host) Addr() netip.Addr { return h.addr4 }

// Addr6 returns the IPv6 address, the zero address where none was asked for.
func (h *Host) Addr6() netip.Addr { return h.addr6 }

// Do runs f with the calling goroutine inside the host: sockets that f opens belong to the host,
// and stay there when f is over. Goroutines that f starts are outside, so resolve no names in f and
// dial literal addresses only.
func (h *Host) Do(f func() error) error { return enter(h.namespace, f) }

// ListenUDP opens a UDP socket in the host.
func (h *Host) ListenUDP(at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = h.Do(func() error {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}

// Listen opens a TCP listener in the host.
func (h *Host) Listen(at netip.AddrPort) (listener net.Listener, err error) {
	err = h.Do(func() error {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	return listener, err
}

// DialContext connects from the host; its form is that of [net.Dialer.DialContext], so that an HTTP
// client can be put into a host with it. The address must be literal.
func (h *Host) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dialling from %s: the address must be literal: %w", h.Name, err)
	}
	err = h.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// nth returns the n-th address of a prefix. All prefixes here end in at least four free bits and
// numbers stay below 65,536.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	tail := b[len(b)-2:]
	binary.BigEndian.PutUint16(tail, binary.BigEndian.Uint16(tail)+uint16(n))
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// within writes an address with the length of its network's prefix.
func within(p netip.Prefix, a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, p.Bits()) }
