package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rules in nftables are in tables of weft's own, of the family inet, and each table is put up and taken down as one: what
// was in it before is replaced in the same transaction, so that there is no moment in between. Whoever reads `nft list ruleset` sees
// whose they are by the table's name, which has the interface's in it. Rules of others are neither read nor changed: a packet
// that they drop stays dropped.

// nftPrefix begins the names of weft's tables.
const nftPrefix = "weft-"

// An nftTable is a table in the making.
type nftTable struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// replaceTable makes a table be what build puts into it, in one transaction.
func replaceTable(name string, build func(*nftTable)) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", advice(err))
	}
	t := &nftTable{conn: c, table: &nftables.Table{Family: nftables.TableFamilyINet, Name: name}}
	c.AddTable(t.table) // deleting one that is not there would fail
	c.DelTable(t.table)
	c.AddTable(t.table)
	build(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: put up the table %s: %w", name, nftAdvice(err))
	}
	return nil
}

// dropTable removes a table, if it is there. A kernel without nftables has none.
func dropTable(name string) error {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
	if there, err := hasTable(c, name); err != nil || !there {
		return nil
	}
	c.DelTable(t)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nftables: take down the table %s: %w", name, nftAdvice(err))
	}
	return nil
}

func hasTable(c *nftables.Conn, name string) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, err
	}
	for _, t := range tables {
		if t.Name == name {
			return true, nil
		}
	}
	return false, nil
}

func nftAdvice(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: this kernel lacks a part of nftables (modules nf_tables, nft_ct, nft_nat, nft_masq; Linux 5.2 or newer)", err)
	}
	return advice(err)
}

// chain adds a base chain. What no rule of it decides is accepted, as far as this table goes.
func (t *nftTable) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	return t.conn.AddChain(&nftables.Chain{Name: name, Table: t.table, Type: kind, Hooknum: hook, Priority: priority})
}

// jumped adds a chain that is only jumped to.
func (t *nftTable) jumped(name string) *nftables.Chain {
	return t.conn.AddChain(&nftables.Chain{Name: name, Table: t.table})
}

// rule adds a rule: its parts in order, matches first.
func (t *nftTable) rule(in *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: in, Exprs: all})
}

// What rules are made of. All of it uses register 1, and 2 where two values meet.

func compare(op expr.CmpOp, data []byte) expr.Any { return &expr.Cmp{Op: op, Register: 1, Data: data} }

func is(yes bool) expr.CmpOp {
	if yes {
		return expr.CmpOpEq
	}
	return expr.CmpOpNeq
}

func meta(key expr.MetaKey, yes bool, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, compare(is(yes), data)}
}

func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// nftIn and nftOut match the interface that a packet came by, or leaves by; yes: it is this one.
func nftIn(name string, yes bool) []expr.Any {
	return meta(expr.MetaKeyIIFNAME, yes, interfaceName(name))
}
func nftOut(name string, yes bool) []expr.Any {
	return meta(expr.MetaKeyOIFNAME, yes, interfaceName(name))
}

// nftInGroup and nftOutGroup match the group of the interface (ip-link(8)).
func nftInGroup(group uint32, yes bool) []expr.Any {
	return meta(expr.MetaKeyIIFGROUP, yes, native32(group))
}
func nftOutGroup(group uint32, yes bool) []expr.Any {
	return meta(expr.MetaKeyOIFGROUP, yes, native32(group))
}

// nftProto matches the protocol above IP, the header that it begins with in IPv6 included.
func nftProto(proto uint8) []expr.Any { return meta(expr.MetaKeyL4PROTO, true, []byte{proto}) }

// nftFamily matches IPv4 or IPv6.
func nftFamily(v4 bool) []expr.Any {
	family := byte(unix.NFPROTO_IPV6)
	if v4 {
		family = unix.NFPROTO_IPV4
	}
	return meta(expr.MetaKeyNFPROTO, true, []byte{family})
}

// nftFrom and nftTo match the source, or the destination, against a prefix, and with it the address family.
func nftFrom(p netip.Prefix) []expr.Any { return nftAddr(p, 12, 8) }
func nftTo(p netip.Prefix) []expr.Any   { return nftAddr(p, 16, 24) }

// nftAddr matches an address at an offset of the IPv4 or the IPv6 header (RFC 791 section 3.1, RFC 8200 section 3).
func nftAddr(p netip.Prefix, four, six uint32) []expr.Any {
	p = unmap(p).Masked()
	out := nftFamily(p.Addr().Is4())
	if p.Bits() == 0 {
		return out
	}
	at := six
	if p.Addr().Is4() {
		at = four
	}
	addr := p.Addr().AsSlice()
	length := uint32(len(addr))
	out = append(out, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: length})
	if p.Bits() < p.Addr().BitLen() {
		out = append(out, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: netOf(p).Mask, Xor: make([]byte, length)})
	}
	return append(out, compare(expr.CmpOpEq, addr))
}

// nftPort matches the destination's port of TCP or UDP.
func nftPort(proto uint8, port uint16) []expr.Any {
	return append(nftProto(proto),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		compare(expr.CmpOpEq, binary.BigEndian.AppendUint16(nil, port)))
}

// nftSourcePort matches the source's.
func nftSourcePort(proto uint8, port uint16) []expr.Any {
	m := nftPort(proto, port)
	m[len(m)-2] = &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}
	return m
}

// nftICMPv6 matches a type of message.
func nftICMPv6(kind byte) []expr.Any {
	return append(nftProto(unix.IPPROTO_ICMPV6),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}, compare(expr.CmpOpEq, []byte{kind}))
}

// nftKnown matches packets of a connection that has been seen both ways, and errors about one.
func nftKnown() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: native32(0)},
		compare(expr.CmpOpNeq, native32(0)),
	}
}

// nftMark matches the packet's mark below a mask.
func nftMark(mark, mask uint32, yes bool) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native32(mask), Xor: native32(0)},
		compare(is(yes), native32(mark)),
	}
}

// nftCtMark matches the connection's mark.
func nftCtMark(mark, mask uint32) []expr.Any {
	m := nftMark(mark, mask, true)
	m[0] = &expr.Ct{Key: expr.CtKeyMARK, Register: 1}
	return m
}

// nftSetMark gives the packet a mark below a mask; its other bits stay.
func nftSetMark(mark, mask uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native32(^mask), Xor: native32(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
	}
}

// nftSetCtMark gives the connection one.
func nftSetCtMark(mark, mask uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native32(^mask), Xor: native32(mark)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true},
	}
}

// nftFitMSS lowers the maximum segment size that a TCP handshake offers to what the packet's way out takes; it never raises one.
func nftFitMSS() []expr.Any {
	const flagSYN, flagRST = 2, 4
	return append(nftProto(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flagSYN | flagRST}, Xor: []byte{0}},
		compare(expr.CmpOpEq, []byte{flagSYN}),
		&expr.Rt{Key: expr.RtTCPMSS, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: 1, Type: 2, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt}) // RFC 9293 section 3.2: kind 2
}

func nftAccept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func nftDrop() []expr.Any   { return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} }
func nftJump(to *nftables.Chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name}}
}

// nftMasquerade has connections appear to come from the address of the interface that they leave by.
func nftMasquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// nftSourceNAT has connections appear to come from an address.
func nftSourceNAT(a netip.Addr) []expr.Any { return nftNAT(expr.NATTypeSourceNAT, a) }

func nftNAT(kind expr.NATType, a netip.Addr) []expr.Any {
	a = a.Unmap()
	family := uint32(unix.NFPROTO_IPV6)
	if a.Is4() {
		family = unix.NFPROTO_IPV4
	}
	return []expr.Any{&expr.Immediate{Register: 1, Data: a.AsSlice()}, &expr.NAT{Type: kind, Family: family, RegAddrMin: 1}}
}

// native32 is a number as nftables keeps marks, states and groups: in the machine's order of bytes.
func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
