package keepalived

import (
	"slices"
	"strings"

	"github.com/guideway/guideway/controller/outside"
)

// Blocks inside blocks: keepalived's own nest four deep.
const blocksMax = 16

// item is a keyword with its values and, if it has one, its block.
type item struct {
	// At least one; empty for a line that is not taken.
	words   []string
	isBlock bool
	items   []*item
	// Where the keyword stands.
	line
}

// blocks of lines. The item that is returned has the outermost ones.
func blocks(lines []line) (*item, error) {
	open := []*item{{isBlock: true}}
	for _, l := range lines {
		if l.skipped != "" {
			inner := open[len(open)-1]
			inner.items = append(inner.items, &item{line: l})
			continue
		}
		found, err := tokens(l.text)
		if err != nil {
			return nil, l.errorf("%w", err)
		}
		var current *item // whose words are being read
		for _, t := range found {
			inner := open[len(open)-1]
			switch {
			case t.isBrace && t.text == "{":
				if current == nil {
					current = headOfBlock(inner)
				}
				if current == nil {
					return nil, l.errorf("`{` stands without a keyword before it: remove it, or write what the block is")
				}
				if len(open) > blocksMax {
					return nil, l.errorf("blocks are nested more than %d deep: is a `}` missing before?", blocksMax)
				}
				current.isBlock = true
				open, current = append(open, current), nil
			case t.isBrace:
				if len(open) == 1 {
					return nil, l.errorf("`}` ends no block: remove it, or add the `{` that is missing before")
				}
				open, current = open[:len(open)-1], nil
			case current == nil:
				current = &item{line: l, words: []string{valid(t.text)}}
				inner.items = append(inner.items, current)
			default:
				current.words = append(current.words, valid(t.text))
			}
		}
	}
	if inner := open[len(open)-1]; len(open) > 1 {
		return nil, inner.errorf("the block of `%s` is not closed: add `}`", inner.what())
	}
	return open[0], nil
}

// valid UTF-8, which all text of our configuration is.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// headOfBlock is the item of a line before, whose `{` stands on a line by itself.
func headOfBlock(inner *item) *item {
	for _, last := range slices.Backward(inner.items) {
		if last.skipped == "" {
			if last.isBlock {
				return nil
			}
			return last
		}
	}
	return nil
}

// keyword is empty for a line that is not taken.
func (i *item) keyword() string { return i.value(0) }

// value of a word; the first one is the keyword. Empty if it is not there.
func (i *item) value(at int) string {
	if at < len(i.words) {
		return i.words[at]
	}
	return ""
}

// what it is, for people. Secrets are not repeated.
func (i *item) what() string {
	words := i.words
	switch {
	case i.skipped != "":
		words = []string{i.text}
	case strings.Contains(i.keyword(), "pass") || strings.Contains(i.keyword(), "key"):
		words = words[:1]
	}
	return outside.Line(strings.Join(words, " "), textMax)
}
