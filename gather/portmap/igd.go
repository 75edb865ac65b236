package portmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"weft/host"
)

const (
	// mappingName is what a router shows people of our mapping.
	mappingName = "weft"
	// maxConflicts is how many other external ports are tried where the first is another machine's.
	maxConflicts = 8
	// maxHead bounds the head of a router's answer in bytes.
	maxHead = 16 << 10
)

// igd is a router that speaks UPnP, by one of its external connections.
type igd struct {
	client  *http.Client
	gateway host.Gateway
	kind    string   // of the service
	control *url.URL // of the service
	port    uint16
	timing  timing

	external  netip.Addr
	permanent bool // it knows only mappings without an end
}

func findUPnP(ctx context.Context, g host.Gateway, port uint16, t timing) (protocol, error) {
	locations, err := search(ctx, g, t)
	if err != nil {
		return nil, err
	}
	client := gatewayClient(g, t)
	err = errNotThere
	for _, at := range locations {
		services, errDescription := describe(ctx, client, at, g.Addr)
		if errDescription != nil {
			err = errDescription
			continue
		}
		for _, s := range services {
			d := &igd{client: client, gateway: g, kind: s.kind, port: port, timing: t}
			if d.control, err = onGateway(s.control, at, g.Addr); err != nil {
				continue
			}
			if err = d.look(ctx); err == nil {
				return d, nil
			}
		}
	}
	return nil, err
}

// gatewayClient speaks HTTP with one gateway: whatever a URL says, connections go there.
func gatewayClient(g host.Gateway, t timing) *http.Client {
	dialer := net.Dialer{Control: host.Own, Timeout: t.request, LocalAddr: &net.TCPAddr{IP: g.Local.AsSlice()}}
	return &http.Client{
		Timeout: t.request,
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHead,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				at, err := netip.ParseAddrPort(address)
				if err != nil || at.Addr() != g.Addr {
					return nil, fmt.Errorf("%s is not the router", address)
				}
				return dialer.DialContext(ctx, network, address)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the router sends elsewhere") },
	}
}

// fetch reads an answer of at most so many bytes.
func fetch(client *http.Client, request *http.Request, most int64) (body []byte, status int, err error) {
	request.Header.Set("User-Agent", mappingName)
	answer, err := client.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("asking the router by UPnP: %w", err)
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, most+1))
	if err == nil && int64(len(body)) > most {
		err = errors.New("its answer is too long")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("asking the router by UPnP: %w", err)
	}
	return body, answer.StatusCode, nil
}

// describe fetches a description and returns the services that map ports, their URLs absolute.
func describe(ctx context.Context, client *http.Client, at *url.URL, gateway netip.Addr) ([]service, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	body, status, err := fetch(client, request, maxDescription)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the router's UPnP description is not to be had: status %d", status)
	}
	services, base, err := parseDescription(body)
	if err != nil {
		return nil, err
	}
	if len(services) == 0 {
		return nil, errNotThere // some other device
	}
	root := at
	if base != "" {
		if root, err = onGateway(base, nil, gateway); err != nil {
			return nil, err
		}
	}
	for i := range services {
		u, err := onGateway(services[i].control, root, gateway)
		if err != nil {
			return nil, err
		}
		services[i].control = u.String()
	}
	return services, nil
}

func (d *igd) name() Protocol { return UPnP }
func (d *igd) close()         { d.client.CloseIdleConnections() }

// do asks for an action.
func (d *igd) do(ctx context.Context, action string, args ...argument) (map[string]string, error) {
	body := appendSOAP(nil, d.kind, action, args)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.control.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", `text/xml; charset="utf-8"`)
	request.Header["SOAPAction"] = []string{`"` + d.kind + "#" + action + `"`} // in the letters that some routers insist on
	answer, status, err := fetch(d.client, request, maxSOAP)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK && status != http.StatusInternalServerError {
		return nil, fmt.Errorf("the router refuses %s by UPnP: status %d", action, status)
	}
	return parseSOAP(answer, action)
}

// look asks for the external address.
func (d *igd) look(ctx context.Context) error {
	args, err := d.do(ctx, "GetExternalIPAddress")
	if err != nil {
		return err
	}
	external, _ := netip.ParseAddr(args["NewExternalIPAddress"]) // of none, "" or 0.0.0.0
	if err := checkExternal(external); err != nil {
		return err
	}
	d.external = external
	return nil
}

func portArguments(external uint16) []argument {
	return []argument{{"NewRemoteHost", ""}, {"NewExternalPort", strconv.Itoa(int(external))}, {"NewProtocol", "UDP"}}
}

// An owner says who has an external port.
type owner uint8

const (
	nobody owner = iota
	ours
	others
)

// owner asks who has an external port. Routers that do not say so have it from nobody.
func (d *igd) owner(ctx context.Context, external uint16) (owner, error) {
	args, err := d.do(ctx, "GetSpecificPortMappingEntry", portArguments(external)...)
	if f := (fault{}); errors.As(err, &f) {
		return nobody, nil
	}
	if err != nil {
		return nobody, err
	}
	if args["NewInternalClient"] == d.gateway.Local.String() && args["NewInternalPort"] == strconv.Itoa(int(d.port)) {
		return ours, nil
	}
	return others, nil
}

func (d *igd) apply(ctx context.Context, suggested uint16) (lease, error) {
	if suggested == 0 {
		return lease{}, errors.New("port 0 is not mapped: it means any")
	}
	external := suggested
	for range maxConflicts {
		has, err := d.owner(ctx, external)
		if err != nil {
			return lease{}, err
		}
		if has != others { // not every router would ask who it is, and not take the port away from them
			l, err := d.add(ctx, external)
			if has == ours && refusedFor(err, faultConflict) { // it does not renew what is there
				if _, err = d.do(ctx, "DeletePortMapping", portArguments(external)...); err == nil {
					l, err = d.add(ctx, external)
				}
			}
			if !refusedFor(err, faultConflict) {
				return l, err
			}
		}
		external = uint16(1024 + rand.N(65536-1024))
	}
	return lease{}, fault{code: faultConflict}
}

// add asks for a mapping, and looks whether it is there: some routers say yes to everything.
func (d *igd) add(ctx context.Context, external uint16) (lease, error) {
	lifetime := d.timing.lifetime
	for {
		seconds := int(lifetime / time.Second)
		if d.permanent {
			seconds = 0
		}
		_, err := d.do(ctx, "AddPortMapping", append(portArguments(external),
			argument{"NewInternalPort", strconv.Itoa(int(d.port))}, argument{"NewInternalClient", d.gateway.Local.String()},
			argument{"NewEnabled", "1"}, argument{"NewPortMappingDescription", mappingName},
			argument{"NewLeaseDuration", strconv.Itoa(seconds)})...)
		// Those that know only mappings without an end should say 725; some say that the arguments are wrong.
		if !d.permanent && refusedFor(err, faultOnlyPermanent, faultInvalidArgs, faultActionFailed) {
			d.permanent = true
			continue
		}
		if err != nil {
			return lease{}, err
		}
		break
	}
	if has, err := d.owner(ctx, external); err == nil && has == others {
		return lease{}, fault{code: faultConflict}
	}
	l, err := d.timing.leaseOf(netip.AddrPortFrom(d.external, external), lifetime, time.Now())
	l.forever = d.permanent
	return l, err
}

func (d *igd) refresh(ctx context.Context, l lease) (lease, error) {
	if err := d.look(ctx); err != nil {
		return l, err
	}
	has, err := d.owner(ctx, l.external.Port())
	if err != nil {
		return l, err
	}
	if has == ours && d.external == l.external.Addr() && time.Now().Before(l.renew) {
		return l, nil
	}
	return d.apply(ctx, l.external.Port())
}

func (d *igd) remove(ctx context.Context, l lease) error {
	if has, err := d.owner(ctx, l.external.Port()); err == nil && has == others {
		return nil // a router that was restarted may have given it away since
	}
	_, err := d.do(ctx, "DeletePortMapping", portArguments(l.external.Port())...)
	if refusedFor(err, faultNoSuchEntry) {
		return nil
	}
	return err
}
