package stun

import (
	"net/netip"

	"weft"
)

// stands reports whether a socket's mapping is still what it was when q was
// answered: the server was asked again, and has answered.
func (d *Discovery) stands(q *question) bool {
	for _, o := range d.questions {
		if o.phase == phaseConfirm && o.socket == q.socket && same(o.to, q.to) && o.change == 0 && o.answered {
			return same(o.result.Mapped, q.result.Mapped)
		}
	}
	return false
}

// tests are the rounds of one of the filtering tests.
func (d *Discovery) tests(change Change) (list []*question) {
	for _, q := range d.questions {
		if d.filter != nil && q.change == change && q.socket == d.filter.socket {
			list = append(list, q)
		}
	}
	return list
}

// outcome is what a filtering test showed: Supported, that the filter lets it in;
// Unsupported, that it does not.
func (d *Discovery) outcome(change Change, from netip.AddrPort) weft.Support {
	tests := d.tests(change)
	copies := 0
	for _, q := range tests {
		if q.letIn(from) {
			return weft.Supported
		}
		if q.silent() {
			copies += q.tx.sent
		}
	}
	alive := d.find(0, from, 0)
	if len(tests) < filterRounds || alive == nil || !alive.answered || !d.stands(d.filter) || !d.way.believes(copies) {
		return weft.SupportUnknown
	}
	for _, q := range tests {
		if !q.silent() {
			return weft.SupportUnknown // a server that does something else
		}
	}
	return weft.Unsupported
}

// ordered is what the test by a prober showed, likewise.
func (d *Discovery) ordered() weft.Support {
	switch o := d.order; {
	case o == nil:
		return weft.SupportUnknown
	case o.came:
		return weft.Supported
	case o.over && d.stands(d.filter) && d.way.believes(o.sent):
		return weft.Unsupported
	}
	return weft.SupportUnknown
}

// filtering judges the filtering tests.
func (d *Discovery) filtering() weft.Filtering {
	if d.filter == nil {
		return weft.FilteringUnknown
	}
	port := weft.SupportUnknown
	if from, ok := d.otherPort(); ok {
		port = d.outcome(ChangePort, from)
	}
	addr := d.ordered()
	if trustworthy(d.base.to, d.base.result.Other) {
		if both := d.outcome(ChangeIP|ChangePort, d.base.result.Other); addr == weft.SupportUnknown || both == weft.Supported {
			addr = both
		}
	}
	switch {
	case addr == weft.Supported && port != weft.Unsupported:
		return weft.EndpointIndependentFiltering
	case addr == weft.Supported:
		return weft.FilteringUnknown // they contradict each other
	case port == weft.Unsupported:
		return weft.AddressAndPortDependentFiltering
	case port == weft.Supported && addr == weft.Unsupported:
		return weft.AddressDependentFiltering
	}
	return weft.FilteringUnknown
}

// hairpin judges the test of hairpinning. What came, came. Silence means something
// where it is certain that the filters were open: they let in everybody, or they
// were opened, by packets to what the other end's packets came from.
func (d *Discovery) hairpin(m weft.Mapping, f weft.Filtering) weft.Support {
	l := d.loop
	switch {
	case l == nil:
		return weft.SupportUnknown
	case l.came:
		return weft.Supported
	case !l.over || !d.stands(l.ends[0].q) || !d.stands(l.ends[1].q) || !d.way.believes(loopCopies):
		return weft.SupportUnknown
	case f == weft.EndpointIndependentFiltering:
		return weft.Unsupported
	case m != weft.EndpointIndependentMapping:
		return weft.SupportUnknown // who knows by which port they leave
	case f == weft.AddressDependentFiltering:
		return weft.Unsupported
	case f == weft.AddressAndPortDependentFiltering && !d.spoilt():
		return weft.Unsupported
	}
	return weft.SupportUnknown
}

// spoilt reports whether packets that the filter keeps out make a mapping useless
// for the endpoint that they came from, so that what is sent there leaves by another:
// then the first of two ends that write to each other spoils it for both. It is so,
// too, as long as the opposite has not been seen.
func (d *Discovery) spoilt() bool {
	from, ok := d.otherPort()
	if !ok || d.filter == nil {
		return true
	}
	q := d.find(d.filter.socket, from, 0)
	return q == nil || !q.answered || !same(q.result.Mapped, d.filter.result.Mapped)
}

// allocations are which outside addresses the sockets got, in the order in which
// they first sent.
func (d *Discovery) allocations() (list []Allocated) {
	for _, q := range d.questions {
		if q.phase == phaseAllocate && q.answered && q.socket < len(d.cfg.Ports) {
			list = append(list, Allocated{Port: d.cfg.Ports[q.socket], Mapped: q.result.Mapped})
		}
	}
	return list
}
