package rendezvous

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	neturl "net/url"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

// relayNumber is the number of the relay beside the rendezvous, the only one.
const relayNumber weft.RelayID = 1

// A View is a network as one member sees it. It asks no clock and is for one goroutine.
//
// It outlives connections: who was there and is missing when the rendezvous is reached again is kept for [Forget], since
// the rendezvous may have started anew and the others be on their way back to it. A member whose record was replaced by
// one that was made earlier keeps the later.
type View struct {
	net     Network
	node    key.NodePublic
	self    wire.Record // claimed if Address is valid
	former  wire.Record // this node's own, of a run that ended a moment ago
	relays  []weft.Relay
	ticket  []byte
	others  map[key.NodePublic]*other
	version uint64
}

// An other is another member.
type other struct {
	record wire.Record
	number weft.NodeID
	kept   bool      // from the last run's map, and not heard of in this one: its claim counts last
	gone   time.Time // when it was missing from all members; zero: it was not
}

// NewView makes the view of a node, which begins with who was in the last map of the network, if there is one.
func NewView(n Network, node key.NodePublic, last *weft.NetworkMap) *View {
	v := &View{net: n, node: node, others: map[key.NodePublic]*other{}}
	if last == nil || len(last.Ranges) == 0 {
		return v
	}
	v.relays, v.ticket, v.version = last.Relays, last.Ticket, last.Version
	for _, p := range last.Peers {
		if len(p.Addrs) == 0 || !last.Ranges[0].Contains(p.Addrs[0]) {
			continue
		}
		r := wire.Record{
			Node: p.Key, Name: p.Name, Address: netip.PrefixFrom(p.Addrs[0], last.Ranges[0].Bits()),
			Candidates: p.Candidates, NAT: p.NAT,
		}
		v.others[p.Key] = &other{record: r, number: p.ID, kept: true}
	}
	return v
}

// Enter takes in what the rendezvous said first.
func (v *View) Enter(e wire.Entered, url string) {
	v.relays = nil
	if e.Relay == nil {
		return
	}
	r := *e.Relay
	// The rendezvous is reached here, whatever it takes its address for; so is the relay beside it.
	r.ID, r.Name, r.URL, r.UDP = relayNumber, "rendezvous", url, nil
	if u, err := neturl.Parse(url); err == nil && r.UDPPort != 0 {
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			r.UDP = []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), r.UDPPort)}
		}
	}
	v.relays = []weft.Relay{r}
}

// Take takes in records, and reports which were none of the network's: damaged, or not sealed by a member.
func (v *View) Take(now time.Time, m wire.Members) (bad int) {
	there := map[key.NodePublic]bool{}
	for _, member := range m.Upsert {
		r, err := wire.OpenRecord(member, v.net.box)
		if err != nil {
			bad++
			continue
		}
		there[r.Node] = true
		if r.Node == v.node {
			if !v.Claimed() {
				v.former = r
			}
			continue
		}
		if o := v.others[r.Node]; o == nil || o.kept || !o.gone.IsZero() || o.record.Made <= r.Made {
			v.others[r.Node] = &other{record: r, number: Number(r.Address.Addr())}
		} else {
			o.gone = time.Time{}
		}
	}
	for _, k := range m.Remove {
		delete(v.others, k)
	}
	if m.Ticket != nil {
		v.ticket = m.Ticket
	}
	if m.Whole {
		for k, o := range v.others {
			switch {
			case there[k]:
			case o.gone.IsZero():
				o.gone = now
			}
		}
	}
	return bad
}

// Lost notes that the rendezvous is away: nobody is forgotten until it is back.
func (v *View) Lost() {
	for _, o := range v.others {
		o.gone = time.Time{}
	}
}

// Forget forgets who has been missing for long, and returns whether there was anybody, and when there is next; zero: never.
func (v *View) Forget(now time.Time) (forgot bool, next time.Time) {
	for k, o := range v.others {
		if o.gone.IsZero() {
			continue
		}
		end := o.gone.Add(Forget)
		if !now.Before(end) {
			delete(v.others, k)
			forgot = true
		} else if next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return forgot, next
}

// Address is this node's, with the length of the network's range; invalid: it has none.
func (v *View) Address() netip.Prefix { return v.self.Address }

// Claimed reports whether this node has an address.
func (v *View) Claimed() bool { return v.self.Address.IsValid() }

// order returns the records of all that have their address, this node's own included, in the order in which they got it;
// and for each that has not, by its node, who has it instead.
func (v *View) order() (have []wire.Record, lost map[key.NodePublic]wire.Record) {
	all := make([]*other, 0, len(v.others)+1)
	for _, o := range v.others {
		all = append(all, o)
	}
	if v.Claimed() {
		all = append(all, &other{record: v.self})
	}
	slices.SortFunc(all, func(a, b *other) int {
		if a.kept != b.kept {
			if b.kept {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.record.Since, b.record.Since), a.record.Node.Compare(b.record.Node))
	})
	lost = map[key.NodePublic]wire.Record{}
	by := map[netip.Addr]wire.Record{}
	for _, o := range all {
		r := o.record
		holder, taken := by[r.Address.Addr()]
		switch {
		case taken:
			lost[r.Node] = holder
		case len(have) > 0 && have[0].Address.Masked() != r.Address.Masked():
			lost[r.Node] = have[0] // the first chose the network's range
		default:
			by[r.Address.Addr()] = r
			have = append(have, r)
		}
	}
	return have, lost
}

// Choose finds the address that this node is to claim: the wanted one, or, if it is only a wish, another where that is
// taken. What cannot be had is said in one sentence that names the holder.
func (v *View) Choose(want netip.Prefix, wish bool) (netip.Prefix, error) {
	self := v.self
	v.self = wire.Record{}
	have, _ := v.order()
	v.self = self
	space := DefaultRange
	if want.IsValid() {
		space = want.Masked()
	}
	if len(have) > 0 {
		if all := have[0].Address.Masked(); all != space {
			if want.IsValid() && !wish {
				return want, &weft.Error{Code: weft.CodeAddressTaken, Message: fmt.Sprintf(
					"%v is no address of this network, whose range is %v (%s has %v): choose one of that range with --address, or leave it out to have one picked",
					want, all, have[0].Name, have[0].Address.Addr())}
			}
			space, want = all, netip.Prefix{}
		}
	}
	taken := map[netip.Addr]string{}
	for _, r := range have {
		taken[r.Address.Addr()] = r.Name
	}
	if want.IsValid() {
		holder, is := taken[want.Addr()]
		if !is {
			return want, nil
		}
		if !wish {
			return want, &weft.Error{Code: weft.CodeAddressTaken, Message: fmt.Sprintf(
				"%v is taken by %s: choose another with --address, or leave it out to have one picked (an address is free %d s after its machine was last heard of)",
				want.Addr(), holder, int(Forget.Seconds()))}
		}
	}
	size := uint64(1) << (32 - space.Bits())
	start := rand.Uint64N(size)
	for i := range size {
		p := netip.PrefixFrom(plus(space.Masked().Addr(), (start+i)%size), space.Bits())
		if taken[p.Addr()] == "" && wire.CheckRendezvousAddress(p) == nil {
			return p, nil
		}
	}
	return want, &weft.Error{Code: weft.CodeExhausted, Message: fmt.Sprintf("no address of %v is free", space)}
}

func plus(a netip.Addr, n uint64) netip.Addr {
	b := a.As4()
	sum := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3]) + n
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// Claim makes the record that this node shows from now on. It has an address since it first claimed that.
func (v *View) Claim(now time.Time, name string, address netip.Prefix, u wire.Update) wire.Record {
	r := wire.Record{
		Made: max(now.UnixMilli(), v.self.Made+1, v.former.Made+1), Node: v.node, Name: name, Address: address,
		Candidates: u.Candidates, NAT: u.NAT,
	}
	switch address {
	case v.self.Address:
		r.Since = v.self.Since
	case v.former.Address:
		r.Since = v.former.Since
	default:
		r.Since = r.Made
	}
	v.self = r
	return r
}

// Abandon gives the address up.
func (v *View) Abandon() { v.self, v.former = wire.Record{}, wire.Record{Made: v.self.Made} }

// Lose reports who has the address that this node claimed, if that is another.
func (v *View) Lose() (holder wire.Record, lost bool) {
	_, all := v.order()
	holder, lost = all[v.node]
	return holder, lost
}

// Map is the network as the daemon takes it. This node must have its address.
func (v *View) Map() weft.NetworkMap {
	have, _ := v.order()
	v.version++
	m := weft.NetworkMap{
		Version: v.version, Domain: weft.Domain, Ranges: v.net.ranges(v.self.Address),
		Service: wire.RendezvousService(v.self.Address), Relays: slices.Clone(v.relays), Ticket: v.ticket,
		Peers: []weft.Node{},
		Rules: []weft.Rule{{From: []weft.Source{weft.Everybody}, Why: "members of a network of two words reach each other"}},
	}
	names := map[string]bool{}
	for _, r := range have {
		n := weft.Node{
			ID: Number(r.Address.Addr()), Name: r.Name, Key: r.Node, Addrs: v.net.addrs(r.Address),
			Candidates: r.Candidates, NAT: r.NAT, Online: true,
		}
		if len(v.relays) > 0 {
			n.HomeRelay = relayNumber
		}
		if names[n.Name] { // of two machines of one name the earlier has it
			n.Name = distinct(n.Name, r.Address.Addr())
		}
		names[n.Name] = true
		if r.Node == v.node {
			m.Self = n
			continue
		}
		m.Peers = append(m.Peers, n)
	}
	slices.SortFunc(m.Peers, func(a, b weft.Node) int { return cmp.Compare(a.ID, b.ID) })
	return m
}

// distinct is the name of a machine whose name another has: with its address behind it, so that everybody calls it alike.
func distinct(name string, a netip.Addr) string {
	suffix := "-" + strings.ReplaceAll(a.String(), ".", "-")
	return strings.TrimRight(name[:min(len(name), weft.MaxNameLength-len(suffix))], "-") + suffix
}
