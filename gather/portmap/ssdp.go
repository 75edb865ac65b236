package portmap

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/ipv4"

	"weft/host"
)

const (
	ssdpPort = 1900
	// ssdpTTL is what UPnP Device Architecture 1.1 section 1.3.2 wants of a search.
	ssdpTTL = 2
	// maxSearchAnswer bounds an answer to a search in bytes; they have some hundred.
	maxSearchAnswer = 4096
	// maxLocations is how many descriptions of one gateway are looked at.
	maxLocations = 4
)

var (
	ssdpGroup = netip.MustParseAddr("239.255.255.250")
	// searchTargets are asked for together: routers answer only to what they are, or to rootdevice alone.
	searchTargets = []string{
		"urn:schemas-upnp-org:device:InternetGatewayDevice:2",
		"urn:schemas-upnp-org:device:InternetGatewayDevice:1",
		"upnp:rootdevice",
	}
)

// appendSearch adds an M-SEARCH (UPnP Device Architecture 1.1 section 1.3.2).
func appendSearch(dst []byte, target string) []byte {
	return fmt.Appendf(dst, "M-SEARCH * HTTP/1.1\r\nHOST: %s:%d\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\nST: %s\r\n\r\n", ssdpGroup, ssdpPort, target)
}

// parseSearchAnswer returns the LOCATION of an answer to a search.
func parseSearchAnswer(b []byte) (location string, ok bool) {
	if len(b) > maxSearchAnswer {
		return "", false
	}
	head, rest, _ := bytes.Cut(b, []byte("\n"))
	status := strings.Fields(string(head))
	if len(status) < 2 || !strings.HasPrefix(status[0], "HTTP/1.") || status[1] != "200" {
		return "", false
	}
	for line := range bytes.Lines(rest) {
		name, value, found := bytes.Cut(line, []byte(":"))
		if found && strings.EqualFold(string(bytes.TrimSpace(name)), "LOCATION") {
			location = string(bytes.TrimSpace(value))
			return location, location != ""
		}
	}
	return "", false
}

// onGateway parses a URL, and refuses all that is not plain HTTP at the gateway's own address.
func onGateway(text string, base *url.URL, gateway netip.Addr) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the router names a place that is none: %w", err)
	}
	if base != nil {
		u = base.ResolveReference(u)
	}
	at, err := netip.ParseAddr(u.Hostname())
	if u.Scheme != "http" || err != nil || at != gateway || u.User != nil {
		return nil, fmt.Errorf("the router names a place that is not on it: %.80q", u.Redacted())
	}
	u.Fragment = ""
	return u, nil
}

// search asks the gateway for its UPnP descriptions and returns where they are. It ends some time after the first
// answer: a router answers for each of its devices.
func search(ctx context.Context, g host.Gateway, t timing) (locations []*url.URL, err error) {
	own := net.ListenConfig{Control: host.Own}
	any, err := own.ListenPacket(ctx, "udp4", netip.AddrPortFrom(g.Local, 0).String())
	if err != nil {
		return nil, fmt.Errorf("asking the router %s: %w", g.Addr, err)
	}
	c := any.(*net.UDPConn)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })()
	p := ipv4.NewPacketConn(c)
	_ = p.SetMulticastTTL(ssdpTTL)
	if i, err := net.InterfaceByIndex(g.Index); err == nil {
		_ = p.SetMulticastInterface(i)
	}
	buf := make([]byte, maxSearchAnswer+1)
	for try, until := 0, time.Now().Add(t.search); try < 2 && len(locations) == 0; try++ {
		for _, target := range searchTargets {
			// To the group, as everybody does, and to the router alone, for those that drop what is for many.
			for _, to := range []netip.Addr{g.Addr, ssdpGroup} {
				_, _ = c.WriteToUDPAddrPort(appendSearch(nil, target), netip.AddrPortFrom(to, ssdpPort))
			}
		}
		deadline := time.Now().Add(time.Until(until) / time.Duration(2-try))
		for {
			c.SetReadDeadline(deadline)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				break
			}
			if from.Addr().Unmap() != g.Addr {
				continue
			}
			text, ok := parseSearchAnswer(buf[:n])
			if !ok {
				continue
			}
			u, err := onGateway(text, nil, g.Addr)
			if err != nil || slices.ContainsFunc(locations, func(x *url.URL) bool { return *x == *u }) {
				continue
			}
			if locations = append(locations, u); len(locations) == maxLocations {
				return locations, nil
			}
			if soon := time.Now().Add(t.search / 10); soon.Before(deadline) {
				deadline = soon
			}
		}
	}
	if len(locations) == 0 {
		return nil, errNotThere
	}
	return locations, nil
}
