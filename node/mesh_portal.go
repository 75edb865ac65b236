package node

import (
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"time"

	"weft"
	"weft/host"
	"weft/path"
	"weft/policy/filter"
	"weft/wire"
)

// A portal's two ends find together by wire.Portal: the local one asks, the remote one, which its administrator told whose client
// its addresses are for, answers. Neither needs the server's leave: to be root on both machines is what it takes. What the rules of the
// kernel do is in host.

const (
	// portalAskAgain is how soon an unanswered question is asked again, and portalAskStill one that was answered: changes of
	// the addresses reach the client by it, and an end that was started anew hears of the other.
	portalAskAgain = time.Second
	portalAskStill = 10 * time.Second
)

// anything is what the client of a portal may talk to, and be talked to by.
var anything = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// A portal is this node's end of one. Its zero value is none.
type portal struct {
	cfg     *PortalRequest // nil: none
	open    bool
	problem string
	refused bool
	heard   time.Time // when the other end last said something
	askAt   time.Time
	offer   wire.Portal      // what is handed over
	iface   string           // with the addresses, at the remote end
	keep    []weft.PortRange // all of it
	leases  *leases
}

// setPortal makes the node the end of a portal that it is to be; nil: none.
func (me *mesh) setPortal(now time.Time, q *PortalRequest) {
	me.closePortal()
	me.portal.cfg = q
	switch {
	case q == nil:
	case q.Role == PortalRemote:
		me.checkPortal(now)
	default:
		me.portal.askAt = now
	}
	me.gatherLinks(now)
	me.gatherLocal(now)
	me.setPeers(now)
}

// closePortal takes it down.
func (me *mesh) closePortal() {
	if me.portal.cfg != nil {
		me.portal.leases.close()
		if err := host.ClosePortal(me.cfg.Device.Name, me.cfg.StateDir); err != nil {
			me.log.Error("the portal could not be taken down whole", "error", err)
		}
		me.problem("portal", "")
	}
	me.portal = portal{}
}

// checkPortal has the remote end hand over what addresses its interface has.
func (me *mesh) checkPortal(now time.Time) {
	p := &me.portal
	if p.cfg == nil || p.cfg.Role != PortalRemote {
		return
	}
	fail := func(sentence string) {
		p.problem = sentence
		me.problem("portal", "the portal: "+sentence)
	}
	iface := p.cfg.Interface
	if iface == "" {
		name, ok := host.DefaultRoute()
		if !ok {
			fail("this machine has no default route, and so no public address to hand over: name the interface with --interface")
			return
		}
		iface = name
	}
	v4, v6, err := host.PublicAddrs(iface)
	if err != nil {
		fail(err.Error())
		return
	}
	offer := wire.Portal{Word: wire.PortalOffers, Addr4: v4.Addr, Gateway: v4.Gateway, Addr6: v6.Addr.Addr(), Resolvers: me.portalResolvers()}
	keep := me.portalKeep(v4.Addr.Addr(), v6.Addr.Addr())
	if p.open && iface == p.iface && reflect.DeepEqual(offer, p.offer) && slices.Equal(keep, p.keep) {
		return
	}
	p.open, p.iface, p.offer, p.keep = false, iface, offer, keep
	cfg := host.PortalRemote{TUN: me.cfg.Device.Name, Interface: iface, Addrs: portalAddrs(offer), Keep: keep, Overlay: me.netmap.Ranges, StateDir: me.cfg.StateDir}
	if len(cfg.Addrs) == 0 {
		fail(iface + " has no global address with a default route, and so none to hand over")
		return
	}
	if err := host.OpenPortalRemote(cfg); err != nil {
		fail(err.Error())
		return
	}
	p.open, p.problem = true, ""
	me.problem("portal", "")
	me.log.Info("the portal is open: what comes to the addresses is the client's", "addresses", cfg.Addrs, "peer", p.cfg.Peer, "kept", keep)
}

// portalKeep is what stays the remote end's own: what its administrator says, and what weft listens on at the addresses.
func (me *mesh) portalKeep(own ...netip.Addr) []weft.PortRange {
	var out []weft.PortRange
	add := func(proto uint8, port uint16) {
		r := weft.PortRange{Proto: proto, First: port, Last: port}
		if port != 0 && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	for _, l := range me.links.list {
		add(weft.ProtoUDP, me.engine.LinkPort(l.ID))
		add(weft.ProtoTCP, me.engine.LinkPort(l.ID))
	}
	add(weft.ProtoUDP, me.engine.Port())
	add(weft.ProtoTCP, me.engine.Port())
	for _, r := range me.netmap.Relays {
		at, here := urlPort(r.URL, own)
		if here {
			add(weft.ProtoTCP, at)
			add(weft.ProtoUDP, r.UDPPort)
		}
		for _, u := range r.UDP {
			if slices.Contains(own, u.Addr().Unmap()) {
				add(weft.ProtoUDP, u.Port())
			}
		}
	}
	if at, here := urlPort(me.cfg.Server, own); here {
		add(weft.ProtoTCP, at)
	}
	return append(out, me.portal.cfg.Keep...)
}

// urlPort is the port of a URL, and whether its host is one of these addresses.
func urlPort(text string, own []netip.Addr) (port uint16, here bool) {
	u, err := url.Parse(text)
	if err != nil {
		return 0, false
	}
	a, err := netip.ParseAddr(u.Hostname())
	if err != nil || !slices.Contains(own, a.Unmap()) {
		return 0, false
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		n = map[string]uint64{"https": 443, "http": 80}[u.Scheme]
	}
	return uint16(n), n != 0
}

// portalResolvers are those of this machine's name servers that answer the client, too.
func (me *mesh) portalResolvers() (out []netip.Addr) {
	for _, s := range host.NameServers() {
		a := s.Addr().Unmap()
		overlay := slices.ContainsFunc(me.netmap.Ranges, func(r netip.Prefix) bool { return r.Contains(a) })
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() && !overlay && s.Port() == 53 && len(out) < wire.MaxPortalResolvers {
			out = append(out, a)
		}
	}
	return out
}

// portalGateway is the gateway that the client is told: that of the other end's network. Where that has none, an address that
// means something on the client's link only.
func portalGateway(offer wire.Portal) netip.Addr {
	if offer.Gateway.IsValid() {
		return offer.Gateway
	}
	return netip.AddrFrom4([4]byte{169, 254, 87, 1})
}

func portalAddrs(p wire.Portal) (out []netip.Addr) {
	if p.Addr4.IsValid() {
		out = append(out, p.Addr4.Addr())
	}
	if p.Addr6.IsValid() {
		out = append(out, p.Addr6)
	}
	return out
}

// pollPortal has the local end ask, and returns when it wants to again.
func (me *mesh) pollPortal(now time.Time) time.Time {
	p := &me.portal
	if p.cfg == nil || p.cfg.Role != PortalLocal {
		return time.Time{}
	}
	if now.Before(p.askAt) {
		return p.askAt
	}
	p.askAt = now.Add(portalAskAgain)
	if p.open {
		p.askAt = now.Add(portalAskStill)
	}
	to := me.peers[p.cfg.Number]
	if to == nil {
		p.problem = p.cfg.Peer + ", the other end, is not in this network any more"
		return p.askAt
	}
	me.sayPortal(now, to, wire.Portal{Word: wire.PortalAsks})
	return p.askAt
}

func (me *mesh) sayPortal(now time.Time, to *peer, m wire.Portal) {
	to.agent.Want(now)
	to.due = true
	via := to.agent.Selected()
	if via.Method == weft.NoMethod {
		return // asked again
	}
	if err := me.send(to, path.Transmit{Via: via, Message: m}, nil); err != nil {
		me.log.Debug("the other end of the portal was not told", "error", err)
	}
}

// takePortal hears what a peer says of portals.
func (me *mesh) takePortal(now time.Time, from *peer, m wire.Portal) {
	p := &me.portal
	ours := p.cfg != nil && p.cfg.Number == from.node.ID
	switch {
	case m.Word == wire.PortalAsks && ours && p.cfg.Role == PortalRemote && p.open:
		p.heard = now
		me.sayPortal(now, from, p.offer)
	case m.Word == wire.PortalAsks:
		me.sayPortal(now, from, wire.Portal{Word: wire.PortalRefuses})
	case !ours || p.cfg.Role != PortalLocal:
	case m.Word == wire.PortalRefuses:
		p.heard, p.refused = now, true
		q := p.cfg
		if p.open {
			me.setPortal(now, nil)
			me.portal.cfg, me.portal.heard, me.portal.refused, p.askAt = q, now, true, now.Add(portalAskAgain)
		}
		p.problem = from.node.Name + " hands no address to this node: say `weft portal remote " + me.netmap.Self.Name + "` there"
		me.problem("portal", "the portal: "+p.problem)
	case m.Word == wire.PortalOffers:
		p.heard, p.refused = now, false
		if !p.open || !reflect.DeepEqual(p.offer, m) {
			me.openLocal(now, m)
		}
	}
}

// openLocal gives the client what the other end offers.
func (me *mesh) openLocal(now time.Time, m wire.Portal) {
	p := &me.portal
	q := p.cfg
	p.open, p.offer = false, m
	cfg := host.PortalLocal{TUN: me.cfg.Device.Name, Lan: q.Interface, Addrs: portalAddrs(m), Gateway: portalGateway(m), Net: m.Addr4,
		Share: q.Share, Uplinks: me.uplinkNames(), Overlay: me.netmap.Ranges, StateDir: me.cfg.StateDir}
	if q.Share.IsValid() && m.Addr4.IsValid() {
		cfg.Addrs = []netip.Addr{m.Addr4.Addr()}
	}
	err := host.OpenPortalLocal(cfg)
	if err == nil && q.DHCP {
		p.leases.close()
		p.leases, err = serveLeases(*q, m, me.cfg.Device.mtu, me.log)
	}
	if err != nil {
		p.problem = err.Error()
		me.problem("portal", "the portal: "+p.problem)
		return
	}
	p.open, p.problem, p.refused = true, "", false
	me.problem("portal", "")
	me.setPeers(now)
	me.log.Info("the portal is open: the client has the addresses", "addresses", cfg.Addrs, "interface", q.Interface, "peer", q.Peer)
}

func (me *mesh) uplinkNames() (out []string) {
	for _, l := range me.links.list {
		if l.Device != "" {
			out = append(out, l.Device)
		}
	}
	return out
}

// portalAllowed is what a peer speaks for, and is sent, because of the portal.
func (me *mesh) portalAllowed(id weft.NodeID) []netip.Prefix {
	p := &me.portal
	switch {
	case p.cfg == nil || !p.open || p.cfg.Number != id:
		return nil
	case p.cfg.Role == PortalLocal:
		return anything
	}
	return hostPrefixes(portalAddrs(p.offer))
}

// portalRules are what a portal lets in besides what the policy does: its administrator's own word.
func (me *mesh) portalRules() []weft.Rule {
	p := &me.portal
	if p.cfg == nil || !p.open {
		return nil
	}
	addrs := hostPrefixes(portalAddrs(p.offer))
	r := weft.Rule{Why: "this machine is the " + p.cfg.Role + " end of a portal"}
	if p.cfg.Role == PortalLocal {
		r.From, r.To = []weft.Source{weft.SourceNode(p.cfg.Number)}, addrs
		return []weft.Rule{r}
	}
	for _, a := range addrs {
		r.From = append(r.From, weft.SourcePrefix(a))
	}
	r.To = anything
	return []weft.Rule{r}
}

// portalFilter adds the portal to what the engine goes by: what the other end speaks for, what is let in, and what is behind this
// node that may begin something. That it goes to the other end's client only is the kernel's rules' to see to, and the other end's.
func (me *mesh) portalFilter(c *filter.Config) {
	p := &me.portal
	if p.cfg == nil || !p.open {
		return
	}
	c.Peers = slices.Clone(c.Peers)
	for i := range c.Peers {
		if n := &c.Peers[i]; n.ID == p.cfg.Number {
			n.Routes = slices.Concat(n.Routes, me.portalAllowed(n.ID))
		}
	}
	if c.Rules != nil {
		c.Rules = slices.Concat(c.Rules, me.portalRules())
	}
	c.Enter = slices.Clone(c.Enter)
	if p.cfg.Role == PortalLocal {
		c.Enter = append(c.Enter, hostPrefixes(portalAddrs(p.offer))...)
	} else {
		c.Enter = append(c.Enter, anything...)
	}
}

// interfaces are this machine's, without the one that a portal's clients are at: what is there is no way to a peer.
func (me *mesh) interfaces() ([]host.Interface, error) {
	list, err := host.Interfaces()
	if q := me.portal.cfg; q != nil && q.Role == PortalLocal {
		list = slices.DeleteFunc(list, func(i host.Interface) bool { return i.Name == q.Interface })
	}
	return list, err
}

// portalStatus is the document of weft portal.
func (me *mesh) portalStatus() weft.PortalStatus {
	p := &me.portal
	s := weft.PortalStatus{Schema: weft.SchemaVersion, Role: PortalOff, Addrs: []netip.Prefix{}}
	if p.cfg == nil {
		return s
	}
	s.Role, s.Peer, s.Open, s.Problem, s.Interface, s.Heard = p.cfg.Role, p.cfg.Peer, p.open, p.problem, p.cfg.Interface, p.heard
	if p.iface != "" {
		s.Interface = p.iface
	}
	s.Share = p.cfg.Share
	if !p.open {
		return s
	}
	s.Keep, s.Leases = p.keep, p.leases.list()
	s.Resolvers = p.offer.Resolvers
	if len(p.cfg.Resolvers) > 0 {
		s.Resolvers = p.cfg.Resolvers
	}
	if p.offer.Addr4.IsValid() {
		s.Addrs = append(s.Addrs, p.offer.Addr4)
		s.Gateways = append(s.Gateways, portalGateway(p.offer))
	}
	if p.offer.Addr6.IsValid() && !p.cfg.Share.IsValid() {
		s.Addrs = append(s.Addrs, netip.PrefixFrom(p.offer.Addr6, 128))
		s.Gateways = append(s.Gateways, host.PortalGateway6)
	}
	var err error
	if s.Traffic, err = host.PortalTrafficOf(me.cfg.Device.Name); err != nil && s.Problem == "" {
		s.Problem = err.Error()
	}
	return s
}
