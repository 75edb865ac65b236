package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"weft/lab/router"
	"weft/lab/vnet"
)

// Router is a host with a network behind it.
type Router struct {
	*Host
	inside *Network
	nat    NAT
	user   *userspace // its NAT, where that is the laboratory's own; nil: the kernel's
}

// AddRouter adds a router to the network, with an empty network behind it. Routers that translate hand
// out 192.168.x.0/24, the others a /28 of public addresses, to which the way is known outside.
func (n *Network) AddRouter(name string, nat NAT, options ...HostOption) (*Router, error) {
	r, err := n.addRouter(name, nat, options)
	if err != nil {
		return nil, fmt.Errorf("adding the router %s: %w", name, err)
	}
	return r, nil
}

func (n *Network) addRouter(name string, nat NAT, options []HostOption) (*Router, error) {
	if !nat.valid() {
		return nil, fmt.Errorf("there is no NAT kind %q", nat)
	}
	host, err := n.attach(name, wanLink, options)
	if err != nil {
		return nil, err
	}
	r := &Router{Host: host, nat: nat}
	inside := &Network{lab: n.lab, gateway: host.namespace, router: r}
	if inside.prefix4, inside.prefix6, err = n.lab.prefixes(nat, host.addr6.IsValid()); err != nil {
		return nil, err
	}
	r.inside = inside
	// The rules stand before the first packet can pass.
	if err := loadRules(host.namespace, ruleset(nat, nth(inside.prefix4, 2))); err != nil {
		return nil, err
	}
	if err := inside.raise(); err != nil {
		return nil, err
	}
	if !nat.translates() {
		err = n.route(inside.prefix4, host.addr4)
	}
	if inside.prefix6.IsValid() {
		err = errors.Join(err, n.route(inside.prefix6, host.addr6))
	}
	return r, err
}

// prefixes hands out the addresses of one more inside network.
func (l *Lab) prefixes(nat NAT, v6 bool) (p4, p6 netip.Prefix, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if nat.translates() {
		for !p4.IsValid() || slices.ContainsFunc(l.lans, p4.Overlaps) {
			if l.nets4++; l.nets4 > 255 {
				return p4, p6, errors.New("all 255 inside networks are in use")
			}
			p4 = netip.PrefixFrom(nth(insidePrefix4, l.nets4<<8), 24)
		}
	} else {
		if l.routed4 == 16 {
			return p4, p6, errors.New("all 16 routed networks are in use")
		}
		p4 = netip.PrefixFrom(nth(routedPrefix4, l.routed4<<4), 28)
		l.routed4++
	}
	if v6 {
		l.routed6++
		b := routedPrefix6.Addr().As16()
		binary.BigEndian.PutUint16(b[6:], uint16(l.routed6)) // the 0th is the public network
		p6 = netip.PrefixFrom(netip.AddrFrom16(b), 64)
	}
	return p4, p6, nil
}

// route tells the gateway of the network, and the gateways in front of it as far as nobody
// translates, the way to a prefix.
func (n *Network) route(prefix netip.Prefix, via netip.Addr) error {
	var err error
	if n.router != nil && n.router.user != nil {
		err = n.router.user.do(func(e *router.Router) { e.AddRoute(router.Inside, router.Route{To: prefix, Via: via}) })
	} else {
		err = batch(n.gateway, "route add "+prefix.String()+" via "+via.String())
	}
	if err != nil {
		return err
	}
	if n.router == nil || prefix.Addr().Is4() && n.router.nat.translates() {
		return nil
	}
	outside := n.router.Addr()
	if prefix.Addr().Is6() {
		outside = n.router.Addr6()
	}
	return n.router.on.route(prefix, outside)
}

// Inside returns the network behind the router.
func (r *Router) Inside() *Network { return r.inside }

// AddHost adds a host behind the router.
func (r *Router) AddHost(name string, options ...HostOption) (*Host, error) {
	return r.inside.AddHost(name, options...)
}

// BlockUDP drops every UDP packet that would pass the router, in both directions, as a strict
// company firewall does. It replaces an earlier block; flows in progress are cut as well.
func (r *Router) BlockUDP() error { return r.setCut(cutAll, router.Block{All: true}) }

// BlockUDPExceptDNS is BlockUDP that lets port 53 through, as most strict networks do.
func (r *Router) BlockUDPExceptDNS() error {
	return r.setCut(cutAllButDNS, router.Block{All: true, ExceptDNS: true})
}

// BlockUDPBetween drops UDP between two addresses, in both directions. The router looks at packets
// on its inner side: inside hosts have their own addresses there, others their public ones.
func (r *Router) BlockUDPBetween(a, b netip.Addr) error {
	if a.BitLen() != b.BitLen() || !a.IsValid() {
		return fmt.Errorf("blocking UDP between %v and %v: they must be two addresses of one family", a, b)
	}
	return r.setCut(cutBetween(a, b), router.Block{A: a, B: b})
}

// Unblock takes the block away. NAT mappings made before it live on if packets kept them alive:
// conntrack counts a packet before the block drops it, and packets that the block kept from going
// out or coming in have left no mapping. [Router.Forget] drops the mappings too.
func (r *Router) Unblock() error { return r.setCut("", router.Block{}) }

func (r *Router) setCut(rules string, b router.Block) error {
	if r.user != nil {
		return r.user.do(func(e *router.Router) { e.SetBlock(b) })
	}
	if err := loadRules(r.namespace, cut(rules)); err != nil {
		return fmt.Errorf("changing what %s blocks: %w", r.Name, err)
	}
	return nil
}

// Forget drops every NAT mapping and firewall state, as a router that restarts does.
func (r *Router) Forget() error {
	if r.user != nil {
		return r.user.do((*router.Router).Forget)
	}
	err := r.Do(flushConntrack)
	if err != nil {
		return fmt.Errorf("clearing the mappings of %s: %w", r.Name, err)
	}
	return nil
}

// SetUDPTimeouts sets how long a mapping lives without packets: before an answer came, and after
// packets went both ways (RFC 4787 REQ-5 asks for two minutes at least; many do less). Whole
// seconds; it holds for mappings made or refreshed from now on.
func (r *Router) SetUDPTimeouts(unreplied, stream time.Duration) error {
	if r.user != nil {
		return fmt.Errorf("setting the UDP timeouts of %s: give them with its NAT, as Timeout", r.Name)
	}
	if unreplied < time.Second || stream < time.Second {
		return fmt.Errorf("setting the UDP timeouts of %s: they must be a second or more", r.Name)
	}
	err := r.Do(func() error {
		return errors.Join(
			sysctl("net/netfilter/nf_conntrack_udp_timeout", strconv.Itoa(int(unreplied/time.Second))),
			sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", strconv.Itoa(int(stream/time.Second))),
		)
	})
	if err != nil {
		return fmt.Errorf("setting the UDP timeouts of %s: %w", r.Name, err)
	}
	return nil
}

// SetLoss drops this share of the packets that pass the router, at random, in both directions; 0
// ends it. Meanwhile senders cut large segments themselves, so that packets are lost and not whole
// bundles of them; this holds for the hosts that are there now.
func (r *Router) SetLoss(percent float64) error {
	if percent < 0 || percent > 100 {
		return fmt.Errorf("setting the loss of %s: %v is not between 0 and 100 percent", r.Name, percent)
	}
	if r.user != nil {
		return r.user.change(r, func(l *vnet.LinkConfig) { l.Loss = percent / 100 })
	}
	if err := errors.Join(r.bundles(percent == 0), loadRules(r.namespace, damage(percent))); err != nil {
		return fmt.Errorf("setting the loss of %s: %w", r.Name, err)
	}
	return nil
}

// bundles allows or forbids segmentation offload on the links that lead into the router.
func (r *Router) bundles(allowed bool) error {
	segments := "1"
	if allowed {
		segments = "65535" // GSO_MAX_SEGS of the kernel, the default
	}
	set := func(link string) string { return "link set " + link + " gso_max_segs " + segments }
	err := batch(r.on.gateway, set(r.peer))
	r.inside.mu.Lock()
	defer r.inside.mu.Unlock()
	for _, h := range r.inside.hosts {
		if h.link == "" {
			continue // a router of the laboratory's own, which bundles nothing
		}
		err = errors.Join(err, batch(h.namespace, set(h.link)))
	}
	return err
}

// SetRate limits what passes the router to so many bits per second, in each direction, with a
// queue of 50 ms; 0 ends it.
func (r *Router) SetRate(bitsPerSecond uint64) error {
	if r.user != nil {
		return r.user.change(r, func(l *vnet.LinkConfig) {
			l.Rate, l.Queue = float64(bitsPerSecond), int(max(bitsPerSecond/8/20, 16<<10))
		})
	}
	var err error
	for _, link := range []string{wanLink, lanLink} {
		if bitsPerSecond == 0 {
			// Deleting is an error where nothing was set; replacing by the default is not.
			err = errors.Join(err, tool("", "tc", "-n", r.namespace, "qdisc", "replace", "dev", link, "root", "pfifo"),
				tool("", "tc", "-n", r.namespace, "qdisc", "del", "dev", link, "root"))
			continue
		}
		// Two milliseconds at this rate, and never less than a few full packets.
		burst := max(bitsPerSecond/8/500, 16<<10)
		err = errors.Join(err, tool("", "tc", "-n", r.namespace, "qdisc", "replace", "dev", link, "root", "tbf",
			"rate", strconv.FormatUint(bitsPerSecond, 10)+"bit", "burst", strconv.FormatUint(burst, 10), "latency", "50ms"))
	}
	if err != nil {
		return fmt.Errorf("setting the rate of %s: %w", r.Name, err)
	}
	return nil
}
