package host

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mnl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"weft"
)

// portalZone is the zone of connection tracking that the client's connections begin in at the remote end (conntrack's
// original zone). The client and the machine itself have one address, and may choose the same port towards the same server: so
// the two are told apart, and of the second the port is changed on its way out.
const portalZone = 87

// Names of the table's counters.
const (
	countTo      = "to-client"
	countFrom    = "from-client"
	countKept    = "kept"
	countRefused = "refused"
)

// unreachable are destinations that a client behind a portal has no business with at the other end's network: that
// machine's own link, and with it the place where clouds keep their machines' secrets.
var unreachable = prefixList("169.254.0.0/16", "fe80::/10")

// filter puts up the remote end's table. A kernel that cannot look for sockets there (nft_socket) takes connections that the machine
// had before for the client's, and they are begun anew.
func (p PortalRemote) filter() error {
	if err := p.put(true); err == nil {
		return nil
	}
	return p.put(false)
}

func (p PortalRemote) put(sockets bool) error {
	guard4, guard6 := weftForwards(true), weftForwards(false)
	name := portalTable(p.TUN)
	err := replaceTable(name, func(t *nftTable) {
		t.counters()
		// Empty, but with it the kernel sees to it that no two connections answer to one port.
		t.chain("unique", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
		t.chain("zone", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)

		whose := t.jumped("whose")
		client := func(match []expr.Any) {
			t.rule(whose, match, nftSetCtMark(PortalMark, PortalMark), nftSetMark(PortalMark, PortalMark), nftCount(countTo), nftAccept())
		}
		own := func(match ...[]expr.Any) {
			t.rule(whose, append(match, nftCount(countKept), nftAccept())...)
		}
		client(nftCtMark(PortalMark, PortalMark))
		own(nftKnown())
		for _, k := range p.Keep {
			for _, match := range nftPortRange(k) {
				own(match)
			}
		}
		own(nftFamily(true), nftSourcePort(unix.IPPROTO_UDP, 67), nftPort(unix.IPPROTO_UDP, 68))    // a lease that is renewed (RFC 2131)
		own(nftFamily(false), nftSourcePort(unix.IPPROTO_UDP, 547), nftPort(unix.IPPROTO_UDP, 546)) // RFC 8415
		for kind := byte(133); kind <= 137; kind++ {                                                // neighbours and routers found (RFC 4861)
			own(nftICMPv6(kind))
		}
		t.rule(whose, nftInvalid(), nftCount(countRefused), nftDrop())
		if sockets { // connections from before anybody kept track of them
			own(nftMiddle(), []expr.Any{&expr.Socket{Key: expr.SocketKeyWildcard, Register: 1}, compare(expr.CmpOpEq, []byte{0})})
		}
		client(nil)

		mark := t.chain("mark", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
		forward := t.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
		for _, a := range p.Addrs {
			t.rule(mark, nftIn(p.TUN, true), nftFrom(single(a)), nftSetCtMark(PortalMark, PortalMark), nftSetMark(PortalMark, PortalMark))
			t.rule(mark, nftIn(p.Interface, true), nftTo(single(a)), nftJump(whose))
		}
		marked := nftMark(PortalMark, PortalMark, true)
		through := t.jumped("through")
		for _, o := range p.Overlay {
			t.rule(through, nftFrom(o), nftCount(countRefused), nftDrop())
			t.rule(through, nftTo(o), nftCount(countRefused), nftDrop())
		}
		for _, u := range unreachable {
			t.rule(through, nftTo(u), nftCount(countRefused), nftDrop())
		}
		t.rule(through, nftIn(p.Interface, true), nftOut(p.TUN, true), nftAccept())
		t.rule(through, nftIn(p.TUN, true), nftOut(p.Interface, true), nftCount(countFrom), nftAccept())
		t.rule(through, nftCount(countRefused), nftDrop())
		t.rule(forward, marked, nftIn(p.TUN, true), nftJump(through))
		t.rule(forward, marked, nftOut(p.TUN, true), nftJump(through))
		t.portalGuard(forward, p.TUN, guard4, guard6)
		in := t.chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
		t.rule(in, marked, nftIn(p.TUN, true), nftCount(countRefused), nftDrop()) // other addresses of this machine
	})
	if err != nil {
		return err
	}
	if err := setZone(name, "zone", p.TUN, p.Addrs); err != nil {
		return fmt.Errorf("nftables: tell the client's connections from this machine's: %w", nftAdvice(err))
	}
	return nil
}

// filter puts up the local end's table.
func (p PortalLocal) filter() error {
	guard4, guard6 := weftForwards(true), weftForwards(false)
	return replaceTable(portalTable(p.TUN), func(t *nftTable) {
		t.counters()
		mark := t.chain("mark", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
		forward := t.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
		marked := nftMark(PortalMark, PortalMark, true)
		setMark := nftSetMark(PortalMark, PortalMark)
		for _, a := range p.Addrs {
			t.rule(mark, nftIn(p.TUN, true), nftTo(single(a)), setMark)
			if !p.Share.IsValid() {
				t.rule(mark, nftIn(p.Lan, true), nftFrom(single(a)), setMark)
			}
		}
		in := [][]expr.Any{marked, nftIn(p.TUN, true), nftOut(p.Lan, true)}
		if p.Share.IsValid() {
			t.rule(mark, nftIn(p.Lan, true), nftFrom(p.Share.Masked()), setMark)
			in = append(in, nftKnown())
			t.share(p)
		}
		t.rule(forward, append(in, nftCount(countTo), nftAccept())...)
		t.rule(forward, marked, nftIn(p.Lan, true), nftOut(p.TUN, true), nftCount(countFrom), nftAccept())
		t.rule(forward, marked, nftIn(p.Lan, true), nftCount(countRefused), nftDrop())
		t.rule(forward, marked, nftIn(p.TUN, true), nftCount(countRefused), nftDrop())
		if !p.Share.IsValid() {
			for _, a := range p.Addrs { // from elsewhere than the other end
				t.rule(forward, nftOut(p.Lan, true), nftTo(single(a)), nftCount(countRefused), nftDrop())
			}
		}
		t.portalGuard(forward, p.TUN, guard4, guard6)
		own := t.chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
		for _, o := range p.Overlay {
			t.rule(own, marked, nftIn(p.Lan, true), nftTo(o), nftCount(countRefused), nftDrop())
		}
	})
}

// share has many clients appear as one.
func (t *nftTable) share(p PortalLocal) {
	nat := t.chain("share", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, a := range p.Addrs {
		if a.Is4() {
			t.rule(nat, nftOut(p.TUN, true), nftFrom(p.Share.Masked()), nftSourceNAT(a))
		}
	}
}

// portalGuard stops what is not the portal's where weft is who switched forwarding on: between the overlay and elsewhere, unless
// the machine is a router too, which has a table that judges that, and between interfaces that the overlay has nothing to
// do with.
func (t *nftTable) portalGuard(forward *nftables.Chain, tun string, four, six bool) {
	for v4, on := range map[bool]bool{true: four, false: six} {
		if !on {
			continue
		}
		stop := t.jumped("past-" + guards[v4])
		t.rule(stop, nftKnown(), nftAccept())
		t.rule(stop, nftCount(countRefused), nftDrop())
		if c, err := nftables.New(); err == nil {
			if router, err := hasTable(c, routerTable(tun)); err == nil && router {
				continue
			}
		}
		t.rule(forward, nftFamily(v4), nftIn(tun, true), nftJump(stop))
		t.rule(forward, nftFamily(v4), nftOut(tun, true), nftJump(stop))
	}
	t.guard(forward, four, six)
}

// PortalTrafficOf reads what the portal of an overlay interface has carried.
func PortalTrafficOf(tun string) (weft.PortalTraffic, error) {
	c, err := nftables.New()
	if err != nil {
		return weft.PortalTraffic{}, fmt.Errorf("read the counters of the portal: %w", advice(err))
	}
	list, err := c.GetObjects(&nftables.Table{Family: nftables.TableFamilyINet, Name: portalTable(tun)})
	if err != nil {
		return weft.PortalTraffic{}, fmt.Errorf("read the counters of the portal: %w", advice(err))
	}
	var out weft.PortalTraffic
	into := map[string]*weft.Traffic{countTo: &out.ToClient, countFrom: &out.FromClient, countKept: &out.Kept, countRefused: &out.Refused}
	for _, o := range list {
		name, x := counterOf(o)
		if c := into[name]; c != nil {
			*c = x
		}
	}
	return out, nil
}

// counterOf reads an object in either of the library's forms.
func counterOf(o nftables.Obj) (string, weft.Traffic) {
	switch o := o.(type) {
	case *nftables.CounterObj:
		return o.Name, weft.Traffic{Packets: o.Packets, Bytes: o.Bytes}
	case *nftables.NamedObj:
		if c, ok := o.Obj.(*expr.Counter); ok {
			return o.Name, weft.Traffic{Packets: c.Packets, Bytes: c.Bytes}
		}
	}
	return "", weft.Traffic{}
}

func (t *nftTable) counters() {
	for _, name := range []string{countTo, countFrom, countKept, countRefused} {
		t.conn.AddObj(&nftables.NamedObj{Table: t.table, Name: name, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	}
}

// nftCount counts a packet under a name.
func nftCount(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: name}}
}

// nftInvalid matches what belongs to no connection and begins none.
func nftInvalid() []expr.Any {
	m := nftKnown()
	m[1].(*expr.Bitwise).Mask = native32(expr.CtStateBitINVALID)
	return m
}

// nftMiddle matches what does not begin a connection of TCP.
func nftMiddle() []expr.Any {
	const flagSYN = 2 // RFC 9293 section 3.1
	return append(nftProto(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flagSYN}, Xor: []byte{0}},
		compare(expr.CmpOpEq, []byte{0}))
}

// nftPortRange matches the destination's ports of a range, one match for each protocol that has ports.
func nftPortRange(r weft.PortRange) (out [][]expr.Any) {
	switch r.Proto {
	case weft.ProtoTCP, weft.ProtoUDP, weft.ProtoSCTP:
		return [][]expr.Any{append(nftProto(r.Proto),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Range{Op: expr.CmpOpEq, Register: 1,
				FromData: binary.BigEndian.AppendUint16(nil, r.First), ToData: binary.BigEndian.AppendUint16(nil, r.Last)})}
	case 0:
		for _, proto := range []uint8{weft.ProtoTCP, weft.ProtoUDP} {
			r.Proto = proto
			out = append(out, nftPortRange(r)...)
		}
		return out
	}
	return [][]expr.Any{nftProto(r.Proto)}
}

// setZone adds rules to a chain that have what comes from addresses by an interface begin in portalZone. The library of the rest
// cannot say of which direction the zone is, so the message is made here.
func setZone(table, chain, tun string, from []netip.Addr) error {
	c, err := mnl.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	family := byte(nftables.TableFamilyINet)
	messages := []mnl.Message{nftMessage(unix.NFNL_MSG_BATCH_BEGIN, mnl.Request, 0, unix.NFNL_SUBSYS_NFTABLES, nil)}
	for _, a := range from {
		parts := append(nftIn(tun, true), nftFrom(single(a))...)
		var list []mnl.Attribute
		for _, x := range append(parts, &expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint16(nil, portalZone)}) {
			b, err := expr.Marshal(family, x)
			if err != nil {
				return err
			}
			list = append(list, mnl.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: b})
		}
		list = append(list, mnl.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: attributes(
			mnl.Attribute{Type: unix.NFTA_EXPR_NAME, Data: []byte("ct\x00")},
			mnl.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: attributes(
				mnl.Attribute{Type: unix.NFTA_CT_KEY, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_CT_ZONE)},
				mnl.Attribute{Type: unix.NFTA_CT_DIRECTION, Data: []byte{0}}, // IP_CT_DIR_ORIGINAL
				mnl.Attribute{Type: unix.NFTA_CT_SREG, Data: binary.BigEndian.AppendUint32(nil, 1)},
			)},
		)})
		messages = append(messages, nftMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE,
			mnl.Request|mnl.Acknowledge|mnl.Create|unix.NLM_F_APPEND, family, 0, attributes(
				mnl.Attribute{Type: unix.NFTA_RULE_TABLE, Data: []byte(table + "\x00")},
				mnl.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: []byte(chain + "\x00")},
				mnl.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: attributes(list...)},
			)))
	}
	messages = append(messages, nftMessage(unix.NFNL_MSG_BATCH_END, mnl.Request, 0, unix.NFNL_SUBSYS_NFTABLES, nil))
	if _, err := c.SendMessages(messages); err != nil {
		return err
	}
	for range from {
		if _, err := c.Receive(); err != nil {
			return err
		}
	}
	return nil
}

// nftMessage is a message of nfnetlink: its header, family and resource in front of the attributes (struct nfgenmsg).
func nftMessage(kind int, flags mnl.HeaderFlags, family byte, resource uint16, data []byte) mnl.Message {
	head := append([]byte{family, unix.NFNETLINK_V0}, binary.BigEndian.AppendUint16(nil, resource)...)
	return mnl.Message{Header: mnl.Header{Type: mnl.HeaderType(kind), Flags: flags}, Data: append(head, data...)}
}

func attributes(list ...mnl.Attribute) []byte {
	b, err := mnl.MarshalAttributes(list)
	if err != nil { // longer than 64 KiB
		return nil
	}
	return b
}
