package keepalived

import (
	"errors"
	"strings"
	"unicode"
)

// withoutComment cuts what follows `#` or `!` outside double quotes, and says whether the line
// ends with a backslash, by which definitions continue. `\#` and `\!` are the characters.
func withoutComment(text string) (line string, continues bool) {
	var kept strings.Builder
	isQuoted := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 == len(text):
			return strings.TrimSpace(kept.String()), true
		case c == '\\':
			i++
			if isQuoted || text[i] != '#' && text[i] != '!' {
				kept.WriteByte(c)
			}
			c = text[i]
		case c == '"':
			isQuoted = !isQuoted
		case !isQuoted && (c == '#' || c == '!'):
			return strings.TrimSpace(kept.String()), strings.HasSuffix(text, `\`)
		}
		kept.WriteByte(c)
	}
	return strings.TrimSpace(kept.String()), false
}

// token is a word, or a brace that opens or ends a block.
type token struct {
	text    string
	isBrace bool
}

// tokens of a line: words are ended by white space and braces. Text in quotes belongs to the
// word that it stands in. `${name}` of an unknown name is no block.
func tokens(line string) (found []token, err error) {
	var word strings.Builder
	inWord := false
	end := func() {
		if inWord {
			found = append(found, token{text: word.String()})
			word.Reset()
			inWord = false
		}
	}
	for i := 0; i < len(line); {
		rest := line[i:]
		switch c := rest[0]; {
		case isBlank(c):
			end()
			i++
		case c == '{' || c == '}':
			end()
			found = append(found, token{rest[:1], true})
			i++
		case c == '"' || c == '\'' && strings.IndexByte(rest[1:], '\'') >= 0:
			text, length := quotedText(rest)
			if length == 0 {
				return nil, errors.New("a quote is not closed: end the text with \" on the same line")
			}
			word.WriteString(text)
			inWord = true
			i += length
		default:
			length := 1
			if braced := strings.IndexByte(rest, '}'); strings.HasPrefix(rest, "${") && braced > 0 {
				length = braced + 1
			}
			word.WriteString(rest[:length])
			inWord = true
			i += length
		}
	}
	end()
	return found, nil
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\v' || c == '\f' }

// quotedText and how long it is with its quotes; 0 if it is not closed. Escapes are the shell's,
// in double quotes only.
func quotedText(from string) (text string, length int) {
	quote := from[0]
	var b strings.Builder
	for i := 1; i < len(from); i++ {
		c := from[i]
		if c == quote {
			return b.String(), i + 1
		}
		if c == '\\' && quote == '"' && i+1 < len(from) {
			escaped, length := unescape(from[i+1:])
			b.WriteByte(escaped)
			i += length
			continue
		}
		b.WriteByte(c)
	}
	return "", 0
}

var escapes = map[byte]byte{'a': '\a', 'b': '\b', 'E': 0x1b, 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v'}

// unescape what follows a backslash, and how many characters that is.
func unescape(from string) (c byte, length int) {
	c = from[0]
	digits, base := "", byte(8)
	switch {
	case escapes[c] != 0:
		return escapes[c], 1
	case c == 'c' && len(from) > 1:
		return from[1] & 0x1f, 2
	case c == 'x':
		digits, base, length = "0123456789abcdef", 16, 1
	case c >= '0' && c <= '7':
		digits = "01234567"
	default:
		return c, 1
	}
	value, most := byte(0), length+3
	if base == 16 {
		most = length + 2
	}
	for length < len(from) && length < most {
		digit := strings.IndexRune(digits, unicode.ToLower(rune(from[length])))
		if digit < 0 {
			break
		}
		value = value*base + byte(digit)
		length++
	}
	return value, length
}
