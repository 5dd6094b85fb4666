//! The frame of a page, for light and dark screens and for print.

const STYLE: &str = include_str!("report.css");

/// A page with a title, further lines below it, and its sections. All parameters are HTML.
pub(crate) fn page(title: &str, lines: &str, sections: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n{lines}</header>\n<main>\n\
         {sections}</main>\n</body>\n</html>\n"
    )
}

/// A list of facts: name and value, which are text.
pub(crate) fn facts<'a>(lines: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let line = |(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value));
    format!("<dl>\n{}</dl>\n", lines.into_iter().map(line).collect::<String>())
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let replace = |c| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        _ => String::from(c),
    };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_opens_no_tag_and_ends_no_attribute() {
        assert_eq!(escape("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }

    #[test]
    fn page_loads_nothing() {
        let page = page("title", "", "");
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("url("), "{page}");
    }
}
