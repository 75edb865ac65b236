package real

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft/lab/netns"
	"weft/lab/scenario"
)

// story is all that happens, with the machines that are switched on later.
func (w *world) story() []scenario.Event {
	list := w.Scenario.Story()
	for _, m := range w.order {
		if m.Start > 0 {
			list = append(list, scenario.Event{At: m.Start, Verb: scenario.Start, Args: []string{m.Name}})
		}
	}
	slices.SortStableFunc(list, func(a, b scenario.Event) int { return int(a.At - b.At) })
	return list
}

// nextEvent is ready when the next event is due.
func (v *watcher) nextEvent() <-chan time.Time {
	if len(v.events) == 0 {
		return nil
	}
	return time.After(time.Until(v.began.Add(v.events[0].At)))
}

// happen lets every event happen that is due.
func (v *watcher) happen() error {
	for len(v.events) > 0 && v.now() >= v.events[0].At {
		e := v.events[0]
		v.events = v.events[1:]
		v.say("%v", e)
		if err := v.let(e); err != nil {
			return fmt.Errorf("line %d: %v: %w", e.Line, e, err)
		}
	}
	return nil
}

// let lets one event happen.
func (v *watcher) let(e scenario.Event) error {
	name := e.Args[0]
	if r := v.routers[name]; r != nil {
		return v.letRouter(e, r)
	}
	switch e.Verb {
	case scenario.Down, scenario.Up, scenario.Cut, scenario.Mend, scenario.Set:
		return v.letLinks(e)
	}
	m := v.hosts[name]
	switch e.Verb {
	case scenario.Start:
		if m.running {
			return nil
		}
		first := m.node == nil
		if err := v.startMachine(v.ctx, m); err != nil || !first {
			return err
		}
		for _, c := range v.Commands {
			if c.Host == m.Name {
				v.orders <- c
			}
		}
		return nil
	case scenario.Weft:
		v.orders <- e.Command()
		return nil
	case scenario.Stop, scenario.Restart:
		if m.running {
			if err := v.stopMachine(m); err != nil {
				return err
			}
			v.gone(m, time.Now())
		}
		if e.Verb == scenario.Restart {
			ctx, cancel := context.WithTimeout(v.ctx, readyWithin)
			defer cancel()
			return v.startMachine(ctx, m)
		}
		return nil
	case scenario.Move:
		return m.host.Move(v.network(e.Args[1]))
	case scenario.Readdress:
		return m.host.Move(v.network(v.place(m)))
	}
	return fmt.Errorf("%s is nothing that happens to a host", e.Verb)
}

// cuts are the directions of a link, out and in, that a cut event cuts.
func cuts(e scenario.Event) (out, in bool) {
	return len(e.Args) < 2 || e.Args[1] == "out", len(e.Args) < 2 || e.Args[1] == "in"
}

// letLinks lets an event happen to a link of a host, or to all of them.
func (v *watcher) letLinks(e scenario.Event) error {
	h, index, all := v.Leg(e.Args[0])
	if h == nil {
		return errors.New("there is no such link")
	}
	m := v.hosts[h.Name]
	var err error
	for i := range m.Legs() {
		if i == index || all {
			err = errors.Join(err, m.letLink(e, i))
		}
	}
	return err
}

// letLink lets an event happen to one link: the first is the host's own leg.
func (m *machine) letLink(e scenario.Event, index int) error {
	type link interface {
		SetCarrier(up bool) error
		SetCut(out, in bool) error
		SetLinks(out, in scenario.Way) error
	}
	var l link = m.host
	if index > 0 {
		l = m.legs[index-1]
	}
	switch e.Verb {
	case scenario.Down, scenario.Up:
		return l.SetCarrier(e.Verb == scenario.Up)
	case scenario.Cut:
		return l.SetCut(cuts(e))
	case scenario.Mend:
		return l.SetCut(false, false)
	}
	return l.SetLinks(e.Link.Out, e.Link.In)
}

// place is the network that a machine is on now.
func (v *watcher) place(m *machine) string {
	place := m.On
	for _, e := range v.Events {
		if e.Verb == scenario.Move && e.Args[0] == m.Name && e.At <= v.now() && !slices.ContainsFunc(v.events, func(x scenario.Event) bool { return x.Line == e.Line }) {
			place = e.Args[1]
		}
	}
	return place
}

func (v *watcher) letRouter(e scenario.Event, r *netns.Router) error {
	switch e.Verb {
	case scenario.Block:
		return r.BlockUDP()
	case scenario.Allow:
		return r.Unblock()
	case scenario.Forget:
		return r.Forget()
	case scenario.Rebind:
		return r.Rebind()
	case scenario.Readdress:
		return r.Readdress()
	case scenario.Down, scenario.Up:
		return r.SetUp(e.Verb == scenario.Up)
	case scenario.Cut:
		return r.SetCut(cuts(e))
	case scenario.Mend:
		return r.SetCut(false, false)
	case scenario.Set:
		return r.SetLinks(e.Link.Out, e.Link.In)
	}
	return fmt.Errorf("%s is nothing that happens to a router", e.Verb)
}
