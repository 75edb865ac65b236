package node

import (
	"slices"
	"time"

	"weft/engine/underlay"
	"weft/host"
	"weft/path"
)

// A link that goes down rests: nothing goes by it and nobody is told of it, but its sockets stay open and its watch of the NATs
// goes on, so that it is a link again in the moment that it is up. One that goes down again and again has to be up for
// a while first, as ways have to answer for a while (path.Rest): that spares everybody the news of each time.

// routeWithin is how long after it came up a link that rests is kept although no route leads there: addresses and routes come
// one by one, and from a DHCP server within seconds.
const routeWithin = 10 * time.Second

// rested is what is remembered of a link for that. The zero value is of one that never rested.
type rested struct {
	down  time.Time // since when it rests; zero: it does not
	upAt  time.Time // it rests, and its interface is up again since; zero: it is not
	back  time.Time // when it rested no more
	flaps int       // how often in a row it went down soon after it was back
}

// rest takes a link out of use, or leaves it so.
func (l *links) rest(now time.Time, o *meshLink) {
	if o.down.IsZero() {
		o.flaps = path.Flaps(now, o.back, o.flaps)
		o.down, o.upAt = now, time.Time{}
	}
	l.resting = append(l.resting, o)
	if !o.upAt.IsZero() {
		at := o.upAt.Add(path.Rest(o.flaps))
		if !now.Before(at) {
			at = o.upAt.Add(routeWithin) // it waits for a route
		}
		if l.lookAt.IsZero() || at.Before(l.lookAt) {
			l.lookAt = at
		}
	}
}

// rests reports whether a link that is up has to rest a little longer.
func (l *links) rests(now time.Time, x underlay.Link) bool {
	i := slices.IndexFunc(l.resting, func(o *meshLink) bool { return o.Link == x })
	if i < 0 {
		return false
	}
	o := l.resting[i]
	if o.upAt.IsZero() {
		o.upAt = now
	}
	return now.Sub(o.upAt) < path.Rest(o.flaps)
}

// worthKeeping reports whether a link that is none now may be one again soon: its interface is there, and down, or up since a
// moment ago.
func (o *meshLink) worthKeeping(now time.Time, ifaces []host.Interface) bool {
	i := slices.IndexFunc(ifaces, func(i host.Interface) bool { return i.Index == o.Index && i.Name == o.Device })
	if i < 0 || o.ID == 0 {
		return false
	}
	if !ifaces[i].Up {
		o.upAt = time.Time{}
		return true
	}
	if !o.down.IsZero() && o.upAt.IsZero() {
		o.upAt = now
	}
	return !o.down.IsZero() && now.Sub(o.upAt) < routeWithin
}

// stands takes a link into use, and reports whether it rested.
func (o *meshLink) stands(now time.Time) bool {
	if o.down.IsZero() {
		return false
	}
	o.down, o.upAt, o.back = time.Time{}, time.Time{}, now
	return true
}
